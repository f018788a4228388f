"""Entry of the table of recipes."""

import enum
from dataclasses import dataclass


class Fidelity(enum.Enum):
    """Relation of a recipe to the system it is named after."""

    FAITHFUL = "faithful"  # the published rule
    SIMPLIFIED = "simplified"  # a part of the system, or another rule in one place
    RECONSTRUCTED = "reconstructed"  # rebuilt where rules or constants are not published
    OWN = "own"  # no published system


SIMPLIFIED = Fidelity.SIMPLIFIED
RECONSTRUCTED = Fidelity.RECONSTRUCTED
OWN = Fidelity.OWN


@dataclass(frozen=True, slots=True)
class NamedRecipe:
    """A published system as a combination of parts."""

    name: str
    system: str  # as its authors call it
    paper: str  # arXiv id, empty when there is none
    recipe: str  # its spelling
    training: str = "none"  # training that it needs before it can run
    fidelity: Fidelity = Fidelity.FAITHFUL
    note: str = ""  # one sentence: how it differs from the paper

"""Recursive rejection sampling over draws without replacement.

RSD (arXiv 2402.14160), Sequoia (arXiv 2402.12374), EAGLE-1 (arXiv 2401.15077): siblings are tested
in the order they were drawn, and q loses each refused token before it judges the next.
"""

from dataclasses import dataclass
from typing import ClassVar

from sapwood.part import Part
from sapwood.protocols import Laws
from sapwood.records import Draw, Guarantee, Verdict
from sapwood.rng import Rng
from sapwood.tree import Tree
from sapwood.verifiers.walk import in_turn, walk


@dataclass
class Rrs(Part):
    """Test draws without replacement in turn; q loses each refused token."""

    paper: ClassVar[str] = "2402.14160"
    accepts: ClassVar[frozenset[Draw]] = frozenset({Draw.SWOR})
    guarantee: ClassVar[Guarantee] = Guarantee.LAW
    reads_q: ClassVar[bool] = True

    def verify(self, tree: Tree, laws: Laws, position: int, rng: Rng) -> Verdict:
        """Walk down the accepted draws."""
        return walk(tree, laws, position, rng, in_turn(replacement=False))

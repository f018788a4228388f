"""Every legal combination of draws, policy and verifier on a toy draft model."""

import itertools
from collections.abc import Iterator

from sapwood import registry
from sapwood.backends.toy import ToyBackend
from sapwood.controllers.fixed import Fixed
from sapwood.core.part import Part
from sapwood.core.protocols import Controller
from sapwood.core.types import Draw
from sapwood.drafters.compose.draft_model import DraftModel
from sapwood.errors import Unsound
from sapwood.policies.groups import Groups
from sapwood.policies.static import Static
from sapwood.recipe import Recipe
from sapwood.verifiers.kseq import Kseq
from tests.helpers.part_factory import lossless_names, plain_names

SMALL = Fixed(
    nodes=4, depth=2, width=2
)  # small enough to enumerate, large enough to branch and to prune
SHAPED: dict[str, Part] = {
    "static": Static(shape=[2, 1]),
    "groups": Groups(floor=0.3),
    "kseq": Kseq(shape=[2, 1]),
}


def part(family: str, name: str) -> Part:
    """A part by name, with options that make a toy tree interesting."""
    return SHAPED.get(name) or registry.lookup(family, name)()


def combine(draws: Draw, policy: str, verifier: str, controller: Controller = SMALL) -> Recipe:
    """A recipe over a toy draft model."""
    drafter = DraftModel(model=ToyBackend("draft"), draws=draws)
    return Recipe(drafter, part("policy", policy), part("verifier", verifier), controller)  # type: ignore[arg-type]


def combinations() -> Iterator[tuple[Draw, str, str]]:
    """Every (draws, policy, verifier), legal or not, that promises something; greedy is left to temperature 0."""
    verifiers = [name for name in lossless_names() if name != "greedy"]
    yield from itertools.product(Draw, plain_names("policy"), verifiers)


def legal(draws: Draw, policy: str, verifier: str) -> bool:
    """True when the recipe can be built."""
    try:
        combine(draws, policy, verifier)
    except Unsound:
        return False
    return True


LEGAL = [combination for combination in combinations() if legal(*combination)]
ILLEGAL = [combination for combination in combinations() if not legal(*combination)]

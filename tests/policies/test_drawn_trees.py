"""Trees of draws keep the exact law where siblings are judged in turn; a cut by the token is seen."""

import dataclasses

import pytest

from sapwood.backends.toy import ToyBackend
from sapwood.controllers.fixed import Fixed
from sapwood.core.protocols import Policy, Verifier
from sapwood.core.tree import Tree
from sapwood.core.types import Budget, Draw
from sapwood.drafters.compose.draft_model import DraftModel
from sapwood.policies.cast import Cast
from sapwood.policies.ddd import Ddd
from sapwood.policies.dsbd import Dsbd
from sapwood.policies.dyspec import DySpec
from sapwood.policies.open_slots import places
from sapwood.policies.opt_tree import OptTree
from sapwood.policies.rsd import Rsd
from sapwood.policies.sequoia import Sequoia
from sapwood.policies.specexec import SpecExec
from sapwood.recipe import Recipe
from sapwood.testing import law_error
from sapwood.verifiers.mixed import Mixed
from sapwood.verifiers.mss import Mss
from sapwood.verifiers.rrs import Rrs
from tests.helpers.oracle_drafter import EXACT


@dataclasses.dataclass
class Peeking(DySpec):
    """Values a place by the token that was drawn there: the known mistake."""

    def fill(self, tree: Tree, budget: Budget, wants: int) -> tuple[list[int], list[int]]:
        kept, wanted = super().fill(tree, budget, wants)
        through = places(tree)[1]
        return [node for node in kept if through[node] >= 0.2], wanted


@dataclasses.dataclass
class ByMass(Rsd):
    """Cuts a drawn level by path probability: the known mistake."""

    def arrivals(self, tree: Tree, beam: list[int], count: int) -> list[int]:
        level = [child for node in beam for child in tree.children(node)]
        through = places(tree)[1]
        return sorted(sorted(level, key=lambda node: -through[node])[:count])


RULES: list[tuple[Draw, Verifier]] = [(Draw.SWOR, Rrs()), (Draw.IID, Mss()), (Draw.MIXED, Mixed())]
DRAWN: list[Policy] = [
    DySpec(),
    DySpec(threshold=0.3, stride=9),
    Rsd(beam=2),
    Rsd(beam=2, seed=1),
    Rsd(beam=1),
]
CASES = [(policy, Draw.SWOR, Rrs()) for policy in DRAWN] + [
    (policy, *rule) for policy in DRAWN[1:3] for rule in RULES[1:]
]
SMALL = Fixed(nodes=4, depth=2, width=2)


def gap(policy: Policy, draws: Draw, verifier: Verifier, salt: str = "a") -> float:
    return law_error(
        Recipe(DraftModel(model=ToyBackend("draft"), draws=draws), policy, verifier, SMALL),
        ToyBackend(salt),
    )


@pytest.mark.parametrize(("policy", "draws", "verifier"), CASES, ids=str)
def test_drawn_trees_keep_the_law_where_siblings_are_judged_in_turn(
    policy: Policy, draws: Draw, verifier: Verifier
) -> None:
    assert gap(policy, draws, verifier) <= EXACT


@pytest.mark.parametrize(
    "policy", [Peeking(), ByMass(beam=2)], ids=lambda policy: type(policy).__name__
)
def test_a_cut_by_the_drawn_token_is_seen(policy: Policy) -> None:
    assert gap(policy, Draw.SWOR, Rrs()) > 1e-4


def test_trees_that_look_while_they_grow_are_not_grown_whole() -> None:
    for policy in (Ddd(), Dsbd(), OptTree(), Cast(), SpecExec(), DySpec(), Rsd(), Sequoia()):
        shape = getattr(policy, "levels", None)
        assert shape is None or shape(Budget(8, 4, 2)) is None

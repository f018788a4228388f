"""The policy that keeps all nodes: what came first, within the budget, whatever was drawn."""

import pytest

from sapwood.backends.toy import ToyBackend
from sapwood.controllers.fixed import Fixed
from sapwood.core.tree import ROOT, Tree
from sapwood.core.types import Budget, Draw
from sapwood.drafters.compose.draft_model import DraftModel
from sapwood.policies.keep_all import KeepAll
from sapwood.recipe import Recipe
from sapwood.testing import law_error


def test_whole_keeps_what_came_first() -> None:
    tree = Tree(0)
    tree.extend(ROOT, [1, 2, 3], [0.1, 0.2, 0.9])
    tree.extend(1, [4], [0.9])
    assert KeepAll().prune(tree, Budget(9, 9, 9)) is tree
    assert KeepAll().prune(tree, Budget(2, 9, 9)).tokens.tolist() == [0, 1, 2]


def test_whole_asks_no_more_nodes_than_can_fill_the_budget() -> None:
    tree = Tree(0)
    tree.extend(ROOT, [1, 2, 3, 4, 5], [0.1] * 5)
    tree.close(ROOT)
    assert KeepAll().frontier(tree, Budget(8, 9, 2)) == [
        (1, 2),
        (2, 2),
    ]  # three nodes are left: two groups
    assert KeepAll().frontier(tree, Budget(5, 9, 2)) == []
    assert KeepAll().frontier(tree, Budget(8, 1, 2)) == []


@pytest.mark.parametrize("draws", Draw, ids=lambda draws: draws.value)
def test_whole_cuts_no_draw_by_its_token(draws: Draw) -> None:
    from sapwood.verifiers.mixed import Mixed
    from sapwood.verifiers.mss import Mss

    drafter = DraftModel(model=ToyBackend("draft"), draws=draws)
    recipe = Recipe(
        drafter,
        KeepAll(),
        Mss() if draws is Draw.IID else Mixed(),
        Fixed(nodes=3, depth=2, width=2),
    )
    assert law_error(recipe, ToyBackend("a")) <= 1e-12

"""The shapes that `best` asks a device for: wide levels whatever its stride, within what a tree holds."""

import pytest

from sapwood.core.tree import CAPACITY
from sapwood.core.types import Budget, TreeShape
from sapwood.policies.best import Best
from sapwood.policies.whole_tree_stats import BEAM, STEPS


@pytest.mark.parametrize(("stride", "beam"), [(1, BEAM), (BEAM, BEAM), (2 * BEAM, 2 * BEAM)])
def test_a_level_opens_at_least_so_many_leaves(stride: int, beam: int) -> None:
    first, *_ = Best(stride=stride).tree_shapes(Budget(30, 4, 2))
    assert first == TreeShape(30, STEPS[0], beam, beam)


def test_a_budget_may_be_wider_than_the_levels() -> None:
    first, *_ = Best().tree_shapes(Budget(30, 4, 3 * BEAM))
    assert (first.beam, first.width) == (BEAM, 3 * BEAM)


def test_deep_trees_have_narrower_levels_so_that_all_of_them_fit() -> None:
    shapes = Best().tree_shapes(Budget(30, 64, 2))
    assert [shape.depth for shape in shapes] == [depth for depth in STEPS if depth <= 64]
    for shape in shapes:
        assert shape.width + shape.width * shape.beam * (shape.depth - 1) < CAPACITY

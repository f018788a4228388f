"""The shapes that `best` asks a device for: wide levels whatever its stride, within what a tree holds."""

import numpy as np
import pytest

from sapwood.backends.toy import ToyBackend
from sapwood.controllers.fixed import Fixed
from sapwood.core.protocols import EngineContext
from sapwood.core.tree import CAPACITY
from sapwood.core.types import Budget, GrowthRule, TreeShape
from sapwood.engine.cost_model import flat
from sapwood.engine.loop import no_loader
from sapwood.estimators.raw import Raw
from sapwood.policies.beam import Beam
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


def growth_rule(policy: Best, budget: Budget) -> GrowthRule:
    """The rule of a shape, for a device that grows the tree by itself."""
    shape = policy.tree_shape(budget)
    assert shape is not None
    assert shape.terms is not None
    return shape.terms


def bound() -> Best:
    policy = Best(stride=3)
    policy.bind(EngineContext(ToyBackend(), flat(), no_loader))
    return policy


@pytest.mark.parametrize(("draft", "least"), [(0.0, 0.1), (0.3, 0.3)])
def test_a_leaf_must_pay_for_its_row_and_for_its_drafting(draft: float, least: float) -> None:
    budget = Budget(4, 4, 2, price=np.linspace(0.0, 0.4, 5), draft=draft)  # 0.1 a row
    rule = growth_rule(bound(), budget)
    assert (rule.budget, rule.stride) == (budget, 3)
    assert rule.least == pytest.approx(least)
    assert rule.level == 0.0


def test_where_seconds_have_a_price_a_level_must_pay_for_its_own() -> None:
    policy = bound()
    policy.steps.seconds, policy.steps.chance = 0.25, 0.5
    rule = growth_rule(policy, Budget(4, 4, 2, price=np.linspace(0.0, 0.4, 5), rate=2.0))
    assert (rule.level, rule.chance, rule.least) == (0.5, 0.5, 0.0)


def test_a_fixed_beam_has_one_shape_to_prepare() -> None:
    [shape] = Beam(beam=3, estimator=Raw()).tree_shapes(Budget(7, 4, 5))
    assert (shape.nodes, shape.depth, shape.beam, shape.width) == (7, 4, 3, 5)


def test_the_largest_fixed_budget_is_the_only_one() -> None:
    assert Fixed(7, 4, 5).largest == Budget(7, 4, 5)
    assert Fixed(0).largest is None

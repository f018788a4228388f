"""Expected tokens of trees of a batch, by size and depth."""

import numpy as np
import pytest

from sapwood.core.device_rounds import DEPTHS, SIZES
from sapwood.core.tree import Tree
from sapwood.policies.round_gains import RoundGains, index_of


def chain(*reach: float) -> Tree:
    """A path whose nodes have these probabilities of being accepted."""
    tree = Tree(0)
    for node in range(len(reach)):
        tree.add(node, 1, 0.5, sampled=True)
    tree.reach[1:] = reach
    return tree


def test_a_shape_holds_its_best_nodes_down_to_its_depth() -> None:
    gains = RoundGains()
    gains.observe(chain(0.9, 0.5, 0.25))
    assert gains.expected(1, 1) == pytest.approx(0.9)
    assert gains.expected(3, 1) == pytest.approx(0.9)
    assert gains.expected(3, 2) == pytest.approx(1.4)
    assert gains.expected(3, 3) == pytest.approx(1.65)
    assert gains.expected(63, 6) == pytest.approx(1.65)


def test_deeper_shapes_follow_the_deepest_that_a_tree_tells_of() -> None:
    gains = RoundGains()
    gains.observe(chain(0.8, 0.4, 0.2))
    gains.observe(chain(0.4))
    assert gains.expected(3, 1) == pytest.approx(0.6)
    assert gains.expected(3, 3) == pytest.approx((1.4 + 1.4 / 2) / 2)


def test_a_root_alone_tells_nothing() -> None:
    gains = RoundGains()
    gains.observe(Tree(0))
    assert not gains.trees


def test_means_follow_recent_trees() -> None:
    gains = RoundGains()
    for each in [0.1] * 40 + [0.9] * 80:
        gains.observe(chain(each))
    assert gains.expected(1, 1) == pytest.approx(0.9, abs=0.02)


@pytest.mark.parametrize(("number", "expected"), [(1, 0), (2, 1), (5, 3), (6, 4), (9, 4)])
def test_a_depth_between_two_steps_is_the_lower_one(number: int, expected: int) -> None:
    assert index_of(number, DEPTHS) == expected
    assert np.all(np.diff(SIZES) > 0)

"""One budget for all trees: the plan is the best of all cuts, and for one tree what its policy does."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapwood.core.tree import ROOT, Tree
from sapwood.core.types import Budget
from sapwood.engine.cost_model import CostModel
from sapwood.engine.node_budget import batch_price, portions, prefill_rows, rows_within, spend
from sapwood.policies.reach import worth

reaches = st.lists(st.floats(0.01, 1.0), max_size=4).map(
    lambda values: np.sort(np.array(values))[::-1]
)
stairs = st.lists(st.sampled_from([0.0, 0.0, 0.1, 0.4, 1.5]), min_size=20, max_size=20)


def profit(kept: list[np.ndarray], price: np.ndarray) -> float:
    """Tokens that these nodes bring over the price of their pass."""
    return float(sum(part.sum() for part in kept) - price[sum(map(len, kept))] + price[0])


@given(st.lists(reaches, min_size=1, max_size=3), stairs)
def test_no_other_cut_brings_more(trees: list[np.ndarray], steps: list[float]) -> None:
    price = np.cumsum(steps)
    counts = spend(trees, price)
    best = profit([tree[:count] for tree, count in zip(trees, counts, strict=True)], price)
    for other in itertools.product(*(range(len(tree) + 1) for tree in trees)):
        assert (
            profit([tree[:count] for tree, count in zip(trees, other, strict=True)], price)
            <= best + 1e-12
        )


@given(st.lists(st.floats(0.0, 1.0), max_size=12), stairs, st.integers(1, 12))
def test_one_tree_is_cut_as_its_policy_cuts_it(
    values: list[float], steps: list[float], most: int
) -> None:
    tree = Tree(0)
    price = np.cumsum(steps)
    for token, reach in enumerate(values):
        tree.add(ROOT, token, reach)
    tree.reach[1:] = values
    alone = worth(tree, Budget(most, 4, 4, price[: most + 1]))
    assert spend([np.sort(tree.reach[1:])[::-1][:most]], price[: most + 1]) == [alone]


def test_nodes_go_where_they_are_worth_most() -> None:
    sure = np.array([0.9, 0.8, 0.7, 0.6])
    unsure = np.array([0.5, 0.2, 0.1])
    price = 0.55 * np.arange(8)
    assert spend([sure, unsure], price) == [4, 0]
    assert spend([sure, unsure], 0.15 * np.arange(8)) == [4, 2]
    assert spend([sure, unsure], 0.15 * np.arange(4)) == [3, 0]  # there is room for three
    assert spend([], np.zeros(1)) == []
    assert spend([np.empty(0)], np.zeros(3)) == [0]


def test_a_price_begins_where_the_rows_of_others_end() -> None:
    cost = CostModel([1, 8, 16], [0], [[1.0, 1.0, 9.0]])
    assert batch_price(cost, 0, 2.0, 1, 7).tolist() == [0.0] * 8
    assert batch_price(cost, 0, 2.0, 8, 2).tolist() == [0.0, 2.0, 4.0]
    assert batch_price(cost, 0, 2.0, 16, 1)[1] == pytest.approx(
        2.0 * 9 / 16
    )  # beyond what was measured


@pytest.mark.parametrize(
    ("seconds", "rows"), [(None, 1 << 20), (0.5, 0), (1.0, 1), (2.0, 11), (100.0, 1024)]
)
def test_rows_within_a_time(seconds: float | None, rows: int) -> None:
    assert rows_within(CostModel([1, 1025], [0], [[1.0, 103.4]]), 0, 1, seconds) == pytest.approx(
        rows, abs=50
    )


def test_further_trees_leave_less_time() -> None:
    cost = CostModel([1, 11], [0], [[1.0, 2.0]], tree=0.1)
    assert [rows_within(cost, 0, trees, 1.75) for trees in (1, 2, 6)] == [8, 7, 3]


def test_prompts_are_read_in_turn() -> None:
    assert portions([10, 5, 20], 18) == [10, 5, 3]
    assert portions([10, 5], 0) == [0, 0]
    assert portions([], 9) == []


def test_a_pass_takes_the_rows_of_prompts_that_at_most_double_it() -> None:
    cheap = CostModel([1, 64, 512], [0], [[1.0, 1.1, 1.9]])
    assert prefill_rows(cheap, 0, trees=4, least=64, most=512) == 512
    dear = CostModel([1, 64, 512], [0], [[1.0, 8.0, 60.0]])
    assert prefill_rows(dear, 0, trees=4, least=64, most=512) == 64
    middle = CostModel([1, 101], [0], [[1.0, 11.0]])  # a tenth for each row
    assert prefill_rows(middle, 0, trees=1, least=4, most=64) == 10

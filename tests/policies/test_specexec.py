"""SpecExec holds the best paths of a draft whose steps are marked down."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapwood.core.types import Budget
from sapwood.policies.specexec import SpecExec
from tests.helpers.oracle_drafter import SEEDS, Oracle, reaches, run


@given(SEEDS, st.integers(1, 60), st.sampled_from([1, 4, 128]), st.sampled_from([0.0, 0.01, 0.1]))
def test_specexec_holds_the_best_paths_marked_down(
    seed: int, nodes: int, stride: int, least: float
) -> None:
    oracle = Oracle(seed)
    tree = run(SpecExec(stride=stride, fade=0.9, least=least), oracle, Budget(nodes, 4, 3))
    worth = sorted(
        (reach for reach in reaches(oracle, 4, 0.9).values() if reach >= least), reverse=True
    )[:nodes]
    assert sorted(tree.reach[1:], reverse=True) == pytest.approx(worth)


def test_specexec_goes_deeper_where_steps_are_marked_down_less() -> None:
    oracle = Oracle(5)
    heights = [
        run(SpecExec(fade=fade), oracle, Budget(20, 9, 3)).depths.mean() for fade in (0.3, 0.95)
    ]
    assert heights[0] < heights[1]

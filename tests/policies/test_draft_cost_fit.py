"""The line through the seconds of draft passes."""

import pytest

from sapwood.core.tree import ROOT, Tree
from sapwood.core.types import Outcome, StageTimes, Verdict
from sapwood.policies.draft_cost_fit import DraftCostFit


def timed(levels: int, nodes: int, seconds: float) -> Outcome:
    """A round that expanded so many nodes on so many levels."""
    tree = Tree(0)
    node = ROOT
    tree.close(ROOT)
    for _ in range(levels - 1):
        node = tree.add(node, 0, 0.5)
        tree.close(node)
    for index in range(nodes - levels):
        tree.close(tree.add(int(tree.parents[node]), index + 1, 0.5))
    return Outcome(tree, tree, Verdict((0,), 0), None, 0, StageTimes(draft=seconds))  # type: ignore[arg-type]


def test_pace_finds_the_line() -> None:
    pace = DraftCostFit()
    assert pace.seconds(5) == pace.each == 0.0
    for levels, nodes in [(2, 2), (3, 9), (4, 5), (2, 8), (5, 6)]:
        pace.observe(timed(levels, nodes, 0.1 * levels + 0.02 * nodes))
    assert pace.seconds(7) == pytest.approx(0.1 + 0.14)
    before = pace.seconds(7)
    pace.observe(timed(3, 5, 1e6))  # something else happened
    assert pace.seconds(7) < 4 * before


def test_pace_never_runs_backwards() -> None:
    pace = DraftCostFit()
    for levels, nodes, seconds in [(2, 2, 1.0), (2, 9, 0.5), (4, 5, 0.1), (2, 8, 0.7)]:
        pace.observe(timed(levels, nodes, seconds))
        assert pace.level >= 0
        assert pace.node >= 0
    alike = DraftCostFit()
    alike.observe(timed(3, 3, 0.6))
    assert alike.seconds(1) == pytest.approx(alike.each) == pytest.approx(0.2)

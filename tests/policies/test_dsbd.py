"""DSBD: beams by how many would be accepted."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapwood.core.tree import ROOT, Tree
from sapwood.core.types import Budget
from sapwood.estimators.raw import Raw
from sapwood.policies.dsbd import Dsbd, accepted, width


@given(st.lists(st.floats(0.01, 1), min_size=1, max_size=5))
def test_dsbd_counts_accepted_beams(weights: list[float]) -> None:
    firsts = [weight / (sum(weights) + 0.5) for weight in weights]
    probs = np.zeros(len(firsts) + 1)

    def test(left: int, turn: int, open_: float, count: int, weight: float) -> None:
        """Every way the tests can go: since the last acceptance `turn` were refused, and `open_` is not spent."""
        if not left:
            probs[count] += weight
            return
        yes = firsts[turn] / open_
        test(left - 1, 0, 1.0, count + 1, weight * yes)
        test(left - 1, turn + 1, open_ - firsts[turn], count, weight * (1 - yes))

    test(len(firsts), 0, 1.0, 0, 1.0)
    assert accepted(firsts) == pytest.approx(probs)
    for sure in (0.1, 0.5, 0.7, 0.95):
        wide = [count for count in range(len(firsts) + 1) if probs[count:].sum() >= sure]
        assert width(firsts, sure) == max(wide)


def test_dsbd_is_wide_where_drafts_are_trusted() -> None:
    tree = Tree(0)
    tree.extend(ROOT, [1, 2, 3, 4], [0.94, 0.03, 0.01, 0.01])
    assert len(Dsbd(estimator=Raw()).frontier(tree, Budget(30, 9, 4))) == 4
    timid = Tree(0)
    timid.extend(ROOT, [1, 2, 3, 4], [0.2, 0.1, 0.05, 0.05])
    assert len(Dsbd(estimator=Raw()).frontier(timid, Budget(30, 9, 4))) == 1
    assert len(Dsbd(estimator=Raw(), narrowest=3).frontier(timid, Budget(30, 9, 4))) == 3
    assert len(Dsbd(estimator=Raw(), beam=2).frontier(tree, Budget(30, 9, 4))) == 2
    assert accepted([0.9, 0.9]).sum() == pytest.approx(
        1.0
    )  # estimates that add up to more than one

"""Optimal transport: the dual bound is reached, and mass handed out is shifted."""

import numpy as np
import pytest

from sapwood.core.types import Draw
from sapwood.verifiers.optimal import Optimal
from sapwood.verifiers.optimal_iid import OptimalIid
from sapwood.verifiers.transport import transport
from tests.helpers.verifier_recipes import accepted, best_possible, laws_of


@pytest.mark.parametrize("pair", range(6))
def test_optimal_reaches_the_dual_bound(pair: int) -> None:
    p, q = laws_of(pair)
    assert accepted(Draw.IID, OptimalIid(shape=[2]), pair) == pytest.approx(
        best_possible(p, q, 2, True), abs=1e-10
    )
    assert accepted(Draw.SWOR, Optimal(shape=[2]), pair) == pytest.approx(
        best_possible(p, q, 2, False), abs=1e-10
    )


def test_transport_shifts_what_was_handed_out() -> None:
    """The first draft must give way on the shared symbol, or the second one stays empty-handed."""
    drafts = [frozenset({0, 1}), frozenset({0})]
    flow = transport(drafts, np.array([0.5, 0.5]), np.array([0.5, 0.5]))
    assert np.allclose(flow, [[0, 0.5], [0.5, 0]])

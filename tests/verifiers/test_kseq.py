"""K-SEQ accepts as its formula says."""

import math

import numpy as np
import pytest

from sapwood.core.types import Draw
from sapwood.verifiers import kseq as kseq_module
from sapwood.verifiers.kseq import Kseq
from tests.helpers.verifier_recipes import accepted, best_possible, laws_of


@pytest.mark.parametrize("pair", range(6))
def test_kseq_accepts_as_its_formula_says(pair: int) -> None:
    p, q = laws_of(pair)
    rhos = np.linspace(1, 2, 200_001)  # a search, where the rule halves an interval
    betas = np.minimum(p[:, None] / rhos, q[:, None]).sum(axis=0)
    chances = 1 - (1 - betas) ** 2
    expected = chances[np.argmax(chances <= rhos * betas + 1e-12)]
    found = accepted(Draw.IID, Kseq(shape=[2]), pair)
    assert found == pytest.approx(expected, abs=1e-5)
    assert found >= (1 - 1 / math.e) * best_possible(p, q, 2, True)


def test_disjoint_laws_are_refused_without_a_division() -> None:
    p = np.array([0.0, 1.0])
    q = np.array([1.0, 0.0])
    assert kseq_module.discount(p, q, 3) >= 1
    assert np.array_equal(kseq_module.after(p, np.minimum(p, q), 3), p)

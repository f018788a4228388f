"""SpecDec wants a rank and a gap."""

import math

import pytest
from hypothesis import given

from sapwood.verifiers.specdec import SpecDec
from tests.helpers.lossy_rules import SEEDS, VOCAB, judged, lenient_path


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@given(seed=SEEDS)
def test_specdec_wants_a_rank_and_a_gap(seed: int, temperature: float) -> None:
    def passes(path: list[int], child: int) -> bool:
        probs = all_probs[path[-1]]
        token = int(tree.tokens[child])
        best = sorted(range(VOCAB), key=lambda other: -probs[other])[:2]
        return token in best and math.log(probs[best[0]]) - math.log(probs[token]) <= 1.5

    tree, all_probs, verdict, own = judged(SpecDec(top=2, gap=1.5), seed, temperature)
    assert (list(verdict.path), verdict.bonus) == lenient_path(tree, all_probs, own, passes)

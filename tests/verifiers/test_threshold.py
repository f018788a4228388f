"""The threshold verifier: a floor that rises with uncertainty."""

import numpy as np
import pytest
from hypothesis import given

from sapwood.backends.toy import ToyOutput
from sapwood.common.uncertainty import certainty
from sapwood.core.rng import KeyedRng
from sapwood.core.sampling import Sampler, Sampling
from sapwood.core.target_probs import PathProbs
from sapwood.core.tree import ROOT, Tree
from sapwood.verifiers.threshold import Threshold
from tests.helpers.lossy_rules import SEEDS, judged, lenient_path


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@given(seed=SEEDS)
def test_threshold_is_a_floor_that_rises_with_doubt(seed: int, temperature: float) -> None:
    def passes(path: list[int], child: int) -> bool:
        floor = 0.1 + 0.3 * (1 - certainty(tree.proposals[path[-1], 0]))
        return bool(all_probs[path[-1], tree.tokens[child]] >= floor)

    tree, all_probs, verdict, own = judged(Threshold(), seed, temperature)
    assert (list(verdict.path), verdict.bonus) == lenient_path(tree, all_probs, own, passes)


def test_threshold_is_stricter_where_the_drafter_is_unsure() -> None:
    accepted = {}
    for name, draft in {"sure": [0.9, 0.1, 0.0], "unsure": [0.4, 0.35, 0.25]}.items():
        tree = Tree(0)
        tree.proposals[ROOT, 0] = np.array(draft)
        tree.extend(ROOT, [0], [draft[0]])
        all_probs = PathProbs(
            tree, ToyOutput(np.log([[0.25, 0.65, 0.1]] * 2)), Sampler(Sampling(), [0])
        )
        accepted[name] = Threshold().verify(tree, all_probs, 9, KeyedRng(0)).accepted
    assert accepted == {"sure": 1, "unsure": 0}

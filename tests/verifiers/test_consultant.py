"""The consultant averages the surprise along the path."""

import itertools
import math

import pytest
from hypothesis import given

from sapwood.verifiers.consultant import Consultant
from tests.helpers.lossy_rules import SEEDS, judged, lenient_path


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@given(seed=SEEDS)
def test_consultant_averages_the_surprise_along_the_path(seed: int, temperature: float) -> None:
    def passes(path: list[int], child: int) -> bool:
        mean = None
        for parent, node in itertools.pairwise([*path, child]):
            nats = -math.log(all_probs[parent, tree.tokens[node]])
            mean = nats if mean is None else 0.2 * mean + 0.8 * nats
        assert mean is not None
        return mean <= 1.2

    tree, all_probs, verdict, own = judged(Consultant(limit=1.2), seed, temperature)
    assert (list(verdict.path), verdict.bonus) == lenient_path(tree, all_probs, own, passes)

"""BiLD lets tokens pass that are no great surprise."""

import numpy as np
import pytest
from hypothesis import given

from sapwood.verifiers.bild import Bild
from tests.helpers.lossy_rules import SEEDS, judged, lenient_path


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@given(seed=SEEDS)
def test_bild_lets_pass_what_is_no_great_surprise(seed: int, temperature: float) -> None:
    tree, all_probs, verdict, own = judged(Bild(rollback=1.5), seed, temperature)
    path, bonus = lenient_path(
        tree,
        all_probs,
        own,
        lambda path, child: -np.log(all_probs[path[-1], tree.tokens[child]]) <= 1.5,
    )
    assert (list(verdict.path), verdict.bonus) == (path, bonus)

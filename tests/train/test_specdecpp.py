"""The head of SpecDec++ separates accepted from refused tokens and is calibrated."""

import numpy as np
import pytest
import torch

from sapwood.common.numpy_mlp import sigmoid
from sapwood.errors import SapwoodError
from sapwood.train import specdecpp
from sapwood.train.rounds import RecordedRounds
from tests.helpers.recorded_rounds import line, made

torch.set_num_threads(1)


def states_with_a_rule(
    noise: np.random.Generator, count: int = 3000, width: int = 24
) -> RecordedRounds:
    """One drafted token per round; its log odds of acceptance are a line over the state."""
    states = noise.normal(size=(count, width))
    chance = sigmoid(1.0 + 3 * states[:, 0] - 2 * states[:, 1])
    labels = (noise.random(count) < chance).astype(int)
    return made(
        [line([0.5])] * count,
        [[label] for label in labels],
        kept=np.ones(count, np.int64),
        owners=np.ones(count, np.int64),
        states=states.astype(np.float16),
    )


def test_the_head_of_specdecpp_separates_and_is_calibrated() -> None:
    data = states_with_a_rule(np.random.default_rng(0))
    fit = specdecpp.fit(data, blocks=2)
    assert fit.report.after < 0.75 * fit.report.before
    assert fit.report.scores["ranking"] > 0.88  # the rule itself reaches 0.93
    assert fit.report.scores["calibration"] < 0.06
    head = fit.bundle.nets["head"]
    states = data.states.astype(np.float32)
    cautious = sigmoid(head(states)[:, 0]).mean()
    assert cautious < data.labels.mean() - 0.1  # refusals weigh six times
    again = specdecpp.fit(data, blocks=2)
    assert np.array_equal(again.bundle.nets["head"](states[:9]), head(states[:9]))


def test_a_head_needs_states() -> None:
    with pytest.raises(SapwoodError, match="no drafter states were recorded"):
        specdecpp.fit(made([line([0.5])] * 20, [[1]] * 20))

"""Scores, held-out prompts and prices of fitted predictors."""

import numpy as np
import pytest
import torch

from sapwood.common.numpy_mlp import random_mlp
from sapwood.engine.cost_model import flat
from sapwood.errors import SapwoodError
from sapwood.train import fit_mlp, rounds
from sapwood.train.replay import ReplayPrices, priced
from tests.helpers.recorded_rounds import changing

torch.set_num_threads(1)


def test_scores_are_what_they_say() -> None:
    chance = np.array([0.1, 0.4, 0.4, 0.8])
    label = np.array([0, 1, 0, 1])
    assert fit_mlp.ranking(chance, label) == pytest.approx((1 + 1 + 1 + 0.5) / 4)
    assert fit_mlp.ranking(chance, np.ones(4)) == 0.5
    assert fit_mlp.log_loss(np.array([0.5, 0.5]), np.array([0, 1])) == pytest.approx(np.log(2))
    assert fit_mlp.calibration(
        np.array([0.2] * 10), np.array([1, 1, 0, 0, 0, 0, 0, 0, 0, 0]), bins=1
    ) == pytest.approx(0)
    assert fit_mlp.calibration(np.array([0.9] * 10), np.array([0] * 10), bins=2) == pytest.approx(
        0.9
    )


def test_whole_prompts_are_held_out() -> None:
    prompt = np.repeat(np.arange(10), 7)
    held = rounds.held_out(prompt, 0.2, 3)
    assert len(set(prompt[held].tolist())) == 2
    assert set(prompt[held].tolist()).isdisjoint(prompt[~held].tolist())
    with pytest.raises(SapwoodError, match="at least two prompts"):
        rounds.held_out(np.zeros(9, np.int64), 0.2, 0)


def test_held_out_rows_are_never_looked_at() -> None:
    noise = np.random.default_rng(9)
    inputs = noise.normal(size=(200, 5))
    ours = np.arange(200) < 150
    target = torch.from_numpy(inputs[:, 0].astype(np.float32))

    def loss(outputs: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        assert (index < 150).all()
        return ((outputs[:, 0] - target[index]) ** 2).mean()

    net = fit_mlp.minimise(
        random_mlp([5, 16, 1], 0), inputs, loss, ours, fit_mlp.FitSettings(rate=1e-2), 0
    )
    assert np.mean((net(inputs[~ours])[:, 0] - inputs[~ours][:, 0]) ** 2) < 0.1
    with pytest.raises(SapwoodError, match="at least two rows"):
        fit_mlp.minimise(
            random_mlp([5, 1], 0), inputs, loss, np.arange(200) < 1, fit_mlp.FitSettings(), 0
        )


def test_prices_come_from_the_rounds() -> None:
    data = changing(np.random.default_rng(10), count=20)
    assert data.level_seconds() == pytest.approx(0.15)
    assert priced(data, None).seconds(2, 30, 5) == pytest.approx(2 * 0.15 + 1.0)
    assert ReplayPrices(0.1, flat(2.0)).token(3.0, 5, 0) == pytest.approx(0.3)

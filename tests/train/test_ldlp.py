"""Learned draft lengths beat every constant one."""

import numpy as np
import pytest
import torch

from sapwood.core.array_types import FloatArray
from sapwood.engine.cost_model import CostModel
from sapwood.errors import SapwoodError
from sapwood.train import fit_mlp, ldlp
from sapwood.train.rounds import RecordedRounds
from tests.helpers.recorded_rounds import line, made, run_of

torch.set_num_threads(1)


def two_moods(
    noise: np.random.Generator, count: int = 800, cap: int = 10
) -> tuple[RecordedRounds, FloatArray]:
    """Rounds of which the target's state, and the token, tell whether none or most of ten are accepted."""
    good = noise.random(count) < 0.5
    token = noise.integers(0, 2, count)
    long = np.where(token == 1, 9, 6)
    length = np.where(
        good, np.minimum(long + noise.integers(0, 2, count), cap), noise.integers(0, 2, count)
    )
    before = noise.normal(size=(count, 12))
    before[:, 3] = np.where(good, 2.0, -2.0) + 0.3 * noise.normal(size=count)
    trees = [line([0.8] * cap)] * count
    data = made(
        trees,
        [run_of(int(one), cap) for one in length],
        before=before.astype(np.float16),
        root=token,
        draft=np.full(count, 10 * 0.1),
    )
    return data, np.eye(2, dtype=np.float32)


def test_a_learned_length_beats_every_constant_one() -> None:
    data, table = two_moods(np.random.default_rng(3))
    fit = ldlp.fit(data, table, layer=7)
    scores = fit.report.scores
    assert fit.report.after < 0.5 * fit.report.before
    assert scores["tokens per second"] > 1.08 * scores["best constant"]
    assert scores["tokens per second"] <= scores["perfect"]
    assert fit.bundle.facts["layer"] == 7
    assert 0.1 <= scores["quantile"] <= 0.95
    net = fit.bundle.nets["length"]
    state = np.zeros(12, np.float32)
    said = [
        [
            round(float(net(np.concatenate((state + mood * np.eye(12)[3], table[token])))[0]))
            for token in (0, 1)
        ]
        for mood in (-2, 2)
    ]
    assert max(said[0]) <= 2  # none or one is accepted
    assert said[1][0] in (6, 7, 8)  # six or seven
    assert said[1][1] >= 9  # nine or ten, and ten was the end of the draft


def test_the_quantile_comes_from_the_prices() -> None:
    data, table = two_moods(np.random.default_rng(4), count=200)
    steep = CostModel([1, 11], [0], [[1.0, 3.0]])  # 0.2 s more per row
    rate = (data.accepted + 1).sum() / (data.draft + data.verify).sum()
    found = ldlp.fit(
        data, table, layer=7, cost=steep, plan=fit_mlp.FitSettings(epochs=1)
    ).report.scores["quantile"]
    assert found == pytest.approx(max(1 - rate * (0.1 + 0.2), 0.1), abs=1e-6)
    given = ldlp.fit(data, table, layer=7, quantile=0.5, plan=fit_mlp.FitSettings(epochs=1))
    assert given.bundle.facts["quantile"] == 0.5


def test_a_round_accepted_to_its_end_holds_no_longer_prediction_against_it() -> None:
    noise = np.random.default_rng(5)
    cap = noise.choice(
        [2, 8], 600
    )  # how far was drafted says nothing about how far it would have gone
    data = made(
        [line([0.8] * depth) for depth in cap],
        [run_of(min(6, depth), depth) for depth in cap],
        before=noise.normal(size=(600, 4)).astype(np.float16),
        draft=0.01 * cap,
    )
    fit = ldlp.fit(data, np.zeros((1, 2), np.float32), layer=7, quantile=0.3)
    said = fit.bundle.nets["length"](np.zeros(6))[0]
    assert said == pytest.approx(6, abs=0.5)  # the plain 0.3-quantile of what was seen is 2


def test_lengths_need_states() -> None:
    with pytest.raises(SapwoodError, match="no target states were recorded"):
        ldlp.fit(made([line([0.5])] * 20, [[1]] * 20), np.zeros((1, 2), np.float32), layer=1)

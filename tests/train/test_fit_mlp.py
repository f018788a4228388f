"""Small fits: the network as numpy runs it, scores against slow definitions, and when a fit ends."""

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sapwood.common.numpy_mlp import MlpBundle, load, random_mlp, sigmoid
from sapwood.errors import SapwoodError
from sapwood.train.fit_mlp import (
    FitReport,
    FitResult,
    FitSettings,
    calibration,
    forward,
    log_loss,
    minimise,
    odds,
    ranking,
    standardise,
    with_output_bias,
)
from tests.helpers.hidden_state_toy import random_net

torch.set_num_threads(1)
rows = st.lists(st.tuples(st.integers(0, 4), st.booleans()), min_size=1, max_size=14)


# ---------------------------------------------------------------------------------------- network
@pytest.mark.parametrize("activation", ["relu", "silu"])
@pytest.mark.parametrize("residual", [False, True])
def test_torch_computes_what_numpy_computes(activation: str, residual: bool) -> None:
    net = random_net([3, 5, 5, 2], 0, activation=activation, residual=residual)
    inputs = np.random.default_rng(1).normal(2.0, 3.0, (7, 3)).astype(np.float32)
    net = standardise(net, inputs)
    weights = [torch.from_numpy(value) for value in (*net.weights, *net.biases)]
    found = forward(weights, torch.from_numpy((inputs - net.mean) / net.scale), net)
    np.testing.assert_allclose(found.numpy(), net(inputs), rtol=1e-4, atol=1e-4)


def test_inputs_are_standardised_and_constant_ones_only_centred() -> None:
    inputs = np.stack([np.array([1.0, 3.0, 5.0]), np.full(3, 7.0)], 1)
    net = standardise(random_mlp([2, 1], 0), inputs)
    assert net.mean.tolist() == [3.0, 7.0]
    assert net.scale.tolist() == pytest.approx([np.sqrt(8 / 3), 1.0])
    stacked = standardise(random_mlp([2, 1], 0), inputs.reshape(3, 1, 2))
    assert stacked.mean.tolist() == net.mean.tolist()


def test_a_leaning_network_answers_with_its_constants() -> None:
    net = with_output_bias(random_mlp([3, 8, 2], 0), 0.25, -1.5)
    for inputs in (np.zeros((1, 3)), np.full((4, 3), 9.0)):
        np.testing.assert_allclose(net(inputs), np.tile([0.25, -1.5], (len(inputs), 1)))


# ----------------------------------------------------------------------------------------- scores
@given(rows)
def test_ranking_is_the_share_of_pairs_in_the_right_order(made: list[tuple[int, bool]]) -> None:
    chance = np.array([one / 4 for one, _ in made])
    label = np.array([yes for _, yes in made])
    pairs = list(itertools.product(chance[label], chance[~label]))
    wanted = sum((yes > no) + 0.5 * (yes == no) for yes, no in pairs)
    assert ranking(chance, label) == pytest.approx(wanted / len(pairs) if pairs else 0.5)


@given(rows)
def test_log_loss_is_the_mean_of_what_happened(made: list[tuple[int, bool]]) -> None:
    chance = np.array([0.1 + one / 5 for one, _ in made])
    label = np.array([yes for _, yes in made])
    each = [np.log(p) if yes else np.log(1 - p) for p, yes in zip(chance, label, strict=True)]
    assert log_loss(chance, label) == pytest.approx(-np.mean(each))


def test_a_wrong_certainty_costs_much_but_not_everything() -> None:
    assert log_loss(np.array([1.0]), np.array([0])) == pytest.approx(-np.log(1e-7), rel=1e-3)
    assert log_loss(np.array([0.0, 1.0]), np.array([0, 1])) == pytest.approx(0, abs=1e-6)


def test_calibration_is_the_gap_in_bins_of_equally_many_rows() -> None:
    chance = np.array([0.9, 0.1, 0.8, 0.2])
    label = np.array([1, 0, 0, 1])
    low = abs(0.15 - 0.5)  # the two lowest chances, one of which stood
    high = abs(0.85 - 0.5)
    assert calibration(chance, label, bins=2) == pytest.approx((low + high) / 2)
    assert calibration(chance, label, bins=1) == pytest.approx(0.0)
    assert calibration(chance, label, bins=99) == pytest.approx(np.mean([0.1, 0.1, 0.8, 0.8]))


@given(st.floats(0, 1))
def test_odds_are_those_of_the_share_within_bounds(share: float) -> None:
    back = float(sigmoid(np.array(odds(share))))
    assert back == pytest.approx(min(max(share, 1e-4), 1 - 1e-4), rel=1e-6)


# ---------------------------------------------------------------------------------------- fitting
def line_fit(plan: FitSettings, seed: int = 0) -> tuple[float, list[int]]:
    """Fit y = 2x + 1; the error on other points, and how often each batch size was seen."""
    noise = np.random.default_rng(3)
    inputs = noise.normal(size=(60, 1))
    target = torch.from_numpy((2 * inputs[:, 0] + 1).astype(np.float32))
    sizes: list[int] = []

    def loss(outputs: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        sizes.append(len(index))
        return ((outputs[:, 0] - target[index]) ** 2).mean()

    net = minimise(random_mlp([1, 1], seed), inputs, loss, np.ones(60, bool), plan, seed)
    probe = np.array([[-1.0], [0.0], [2.0]])
    return float(np.abs(net(probe)[:, 0] - (2 * probe[:, 0] + 1)).max()), sizes


def test_a_fit_finds_a_line() -> None:
    error, _ = line_fit(FitSettings(epochs=80, batch=10, rate=0.05, decay=0.0))
    assert error < 0.05


def test_fits_repeat_themselves() -> None:
    plan = FitSettings(epochs=5, batch=8, rate=0.05)
    assert line_fit(plan) == line_fit(plan)
    assert line_fit(plan)[0] != line_fit(plan, seed=1)[0]


def test_a_sixth_of_the_rows_chooses_the_epoch() -> None:
    _, sizes = line_fit(FitSettings(epochs=2, batch=20))
    assert sizes == [10, 20, 20, 10, 10, 20, 20, 10, 10]


def test_a_fit_without_progress_ends_early() -> None:
    _, sizes = line_fit(FitSettings(epochs=500, batch=50, rate=0.0, patience=3))
    assert sizes == [10] + [50, 10] * 3


def test_the_best_epoch_is_kept_and_not_the_last() -> None:
    inputs = np.zeros((12, 1))
    calls = itertools.count()

    def loss(outputs: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        # pulls the output up by its slope; the test likes it best after the first epoch
        tested = not outputs.requires_grad
        if tested:
            return torch.tensor([9.0, 1.0, 5.0, 6.0, 7.0][min(next(calls), 4)])
        return -outputs.mean()

    plan = FitSettings(epochs=4, batch=99, rate=0.1, decay=0.0, patience=99)
    net = minimise(random_mlp([1, 1], 0), inputs, loss, np.ones(12, bool), plan, 0)
    assert float(net(inputs[:1])[0, 0]) == pytest.approx(0.1)  # one step of Adam


def test_a_fit_needs_two_rows() -> None:
    with pytest.raises(SapwoodError, match="at least two rows to learn from, not 1; record more"):
        minimise(
            random_mlp([1, 1], 0),
            np.zeros((3, 1)),
            lambda _, __: torch.tensor(0.0),
            np.array([True, False, False]),
            FitSettings(),
            0,
        )


# ----------------------------------------------------------------------------------------- result
def test_a_fit_is_saved_with_its_report(tmp_path: Path) -> None:
    report = FitReport("c2t", 10, 5, 0.7, 0.5, {"ranking": 0.9})
    bundle = MlpBundle("c2t", {"net": random_net([2, 3, 1], 0)}, {"base": 0.3})
    FitResult(bundle, report).save(tmp_path, about={"model": "tiny"})
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["report"] == report.to_json()
    assert config["about"] == {"model": "tiny"}
    assert config["base"] == 0.3
    again = load(str(tmp_path), "c2t", "any").nets["net"]
    inputs = np.ones((1, 2), np.float32)
    np.testing.assert_allclose(again(inputs), bundle.nets["net"](inputs), rtol=1e-2)
    assert bundle.facts == {"base": 0.3}  # left as it was

"""Fits C2T's node classifier (arXiv 2502.13652) on joint probability, entropy and depth: 3-48-1.

Rows are all drafted nodes for which the round shows whether the target's text passes through them.
Most are rejected; these are subsampled, and the log odds are corrected afterwards, so that the
outputs are probabilities.
"""

import numpy as np
import torch
from torch import Tensor

from sapwood.common.numpy_mlp import MlpBundle, random_mlp, sigmoid
from sapwood.core.array_types import FloatArray, IntArray
from sapwood.errors import SapwoodError
from sapwood.estimators.classified import KIND, features
from sapwood.train.fit_mlp import (
    FitReport,
    FitResult,
    FitSettings,
    calibration,
    log_loss,
    minimise,
    odds,
    ranking,
    with_output_bias,
)
from sapwood.train.rounds import UNKNOWN, RecordedRounds

PLAN = FitSettings(epochs=40, batch=1024, rate=3e-3, decay=1e-4)
MOST = 100_000  # rejected nodes that are used


def fit(
    rounds: RecordedRounds,
    *,
    hidden: int = 48,
    share: float = 0.2,  # of the prompts to test on
    plan: FitSettings = PLAN,
    seed: int = 0,
) -> FitResult:
    """Fit the classifier of whether the target's text passes through a node."""
    inputs, labels, owner = rows(rounds)
    held = rounds.held_out(share, seed)[owner]
    ours, rate = thinned(labels, ~held, seed)
    target = torch.from_numpy(labels.astype(np.float32))

    def loss(outputs: Tensor, index: Tensor) -> Tensor:
        return torch.nn.functional.binary_cross_entropy_with_logits(outputs[:, 0], target[index])

    base = float(labels[~held].mean())
    net = minimise(
        with_output_bias(random_mlp([3, hidden, 1], seed), odds(labels[ours].mean())),
        inputs,
        loss,
        ours,
        plan,
        seed,
    )
    net = with_output_bias(net, float(net.biases[-1][0]) + np.log(rate))
    predicted = sigmoid(net(inputs[held])[:, 0].astype(np.float64))
    seen = labels[held]
    raw = sigmoid(inputs[held][:, 0])  # the joint draft probability
    report = FitReport(
        kind=KIND,
        rows=int(ours.sum()),
        held=int(held.sum()),
        before=log_loss(np.full(len(seen), base), seen),
        after=log_loss(predicted, seen),
        scores={
            "ranking": ranking(predicted, seen),
            "calibration": calibration(predicted, seen),
            "raw loss": log_loss(raw, seen),
            "raw ranking": ranking(raw, seen),
            "raw calibration": calibration(raw, seen),
        },
    )
    return FitResult(MlpBundle(KIND, {"classifier": net}, {"base": base}), report)


def rows(rounds: RecordedRounds) -> tuple[FloatArray, IntArray, IntArray]:
    """Features [rows, 3], labels [rows] and the round of each [rows]."""
    if not len(rounds.labels):
        raise SapwoodError("no drafted nodes were recorded; record rounds of a recipe that drafts")
    inputs = np.concatenate([features(tree)[1:] for tree in rounds.trees()])
    known = rounds.labels != UNKNOWN
    owner = np.repeat(np.arange(len(rounds)), rounds.nodes)
    return inputs[known], rounds.labels[known], owner[known]


def thinned(labels: IntArray, ours: np.ndarray, seed: int) -> tuple[np.ndarray, float]:
    """The rows `ours` with at most MOST rejected ones, and the share of those that is kept."""
    refused = np.flatnonzero(ours & (labels == 0))
    if len(refused) <= MOST:
        return ours, 1.0
    dropped = np.random.default_rng(seed).permutation(refused)[MOST:]
    left = ours.copy()
    left[dropped] = False
    return left, MOST / len(refused)

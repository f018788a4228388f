"""Fits the head of SpecDec++ (arXiv 2405.19715): probability of acceptance by the drafter's state.

A wide state is first projected to fewer dimensions, which a recording of minutes needs: the paper's
blocks at full width have more weights than such a recording has rows. Then residual blocks
x + SiLU(Wx + b), each with weights of its own, and one log odds of acceptance (the paper's two-way
softmax, written as the difference). The label is the fate of a drafted token whose parent was
accepted; rejections weigh six times, as in the paper, which makes the head cautious: the reported
calibration is that of its probabilities with the weight removed.
"""

import numpy as np
import torch
from torch import Tensor

from sapwood.common.numpy_mlp import MlpBundle, random_mlp, sigmoid
from sapwood.core.array_types import FloatArray, IntArray
from sapwood.errors import SapwoodError
from sapwood.policies.specdecpp import KIND
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
from sapwood.train.rounds import RecordedRounds, spans

PLAN = FitSettings(epochs=100, batch=128, rate=1e-3, decay=1e-2)


def fit(
    rounds: RecordedRounds,
    *,
    inner: int = 128,  # width of the blocks, if the state is wider
    blocks: int = 3,  # residual blocks
    weight: float = 6.0,  # of a rejection against an acceptance
    share: float = 0.2,  # of the prompts to test on
    plan: FitSettings = PLAN,
    seed: int = 0,
) -> FitResult:
    """Fit the head that predicts acceptance from the drafter's state."""
    states, labels, owner = rows(rounds)
    held = rounds.held_out(share, seed)[owner]
    target = torch.from_numpy(labels.astype(np.float32))
    price = torch.where(target > 0.5, 1.0, weight)

    def loss(outputs: Tensor, index: Tensor) -> Tensor:
        each = torch.nn.functional.binary_cross_entropy_with_logits(
            outputs[:, 0], target[index], reduction="none"
        )
        return (price[index] * each).sum() / price[index].sum()

    width = states.shape[1]
    base = float(labels[~held].mean())
    inside = [inner] * (blocks + 1) if width > inner else [width] * blocks
    start = random_mlp([width, *inside, 1], seed, activation="silu", residual=True)
    net = minimise(
        with_output_bias(start, odds(base) - np.log(weight)), states, loss, ~held, plan, seed
    )
    predicted = sigmoid(net(states[held])[:, 0].astype(np.float64) + np.log(weight))
    seen = labels[held]
    report = FitReport(
        kind=KIND,
        rows=int((~held).sum()),
        held=int(held.sum()),
        before=log_loss(np.full(len(seen), base), seen),
        after=log_loss(predicted, seen),
        scores={
            "ranking": ranking(predicted, seen),
            "calibration": calibration(predicted, seen),
            "accepted": float(seen.mean()),
        },
    )
    return FitResult(MlpBundle(KIND, {"head": net}, {"blocks": blocks, "weight": weight}), report)


def rows(rounds: RecordedRounds) -> tuple[FloatArray, IntArray, IntArray]:
    """States [rows, width], 1 for accepted tokens [rows], and the round of each [rows]."""
    if not len(rounds.states):
        raise SapwoodError(
            "no drafter states were recorded; record rounds with a trained drafter such as eagle3"
        )
    owner = np.repeat(np.arange(len(rounds)), rounds.kept)
    first = np.array([part.start for part in spans(rounds.nodes)])
    return rounds.states.astype(np.float32), rounds.labels[first[owner] + rounds.owners - 1], owner

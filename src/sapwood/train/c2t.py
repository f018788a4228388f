"""Fits C2T's classifier of nodes (arXiv 2502.13652): 3 -> 48 -> 1 on joint probability, entropy and depth.

Rows are all drafted nodes of which the round shows whether the target's text passes through them. Most
do not; the refused ones are thinned to a bearable number, and the log odds are moved back afterwards,
so that the scores are chances.
"""

import numpy as np
import torch
from torch import Tensor

from sapwood.arrays import FloatArray, IntArray
from sapwood.errors import SapwoodError
from sapwood.estimators.c2t import KIND, features
from sapwood.nets import Bundle, begin, sigmoid
from sapwood.train.rounds import UNKNOWN, Rounds
from sapwood.train.small import Fit, Plan, Report, calibration, leaning, log_loss, minimise, odds, ranking

PLAN = Plan(epochs=40, batch=1024, rate=3e-3, decay=1e-4)
MOST = 100_000  # refused nodes that are learned from


def fit(
    rounds: Rounds,
    *,
    hidden: int = 48,
    share: float = 0.2,  # of the prompts to test on
    plan: Plan = PLAN,
    seed: int = 0,
) -> Fit:
    """The classifier that says how likely the target's text passes through a node."""
    inputs, labels, owner = rows(rounds)
    held = rounds.held_out(share, seed)[owner]
    ours, rate = thinned(labels, ~held, seed)
    target = torch.from_numpy(labels.astype(np.float32))

    def loss(outputs: Tensor, index: Tensor) -> Tensor:
        return torch.nn.functional.binary_cross_entropy_with_logits(outputs[:, 0], target[index])

    base = float(labels[~held].mean())
    net = minimise(leaning(begin([3, hidden, 1], seed), odds(labels[ours].mean())), inputs, loss, ours, plan, seed)
    net = leaning(net, float(net.biases[-1][0]) + np.log(rate))
    said, seen = sigmoid(net(inputs[held])[:, 0].astype(np.float64)), labels[held]
    raw = sigmoid(inputs[held][:, 0])  # the joint draft probability
    report = Report(
        kind=KIND,
        rows=int(ours.sum()),
        held=int(held.sum()),
        before=log_loss(np.full(len(seen), base), seen),
        after=log_loss(said, seen),
        scores={
            "ranking": ranking(said, seen),
            "calibration": calibration(said, seen),
            "raw loss": log_loss(raw, seen),
            "raw ranking": ranking(raw, seen),
            "raw calibration": calibration(raw, seen),
        },
    )
    return Fit(Bundle(KIND, {"classifier": net}, {"base": base}), report)


def rows(rounds: Rounds) -> tuple[FloatArray, IntArray, IntArray]:
    """Features [rows, 3], labels [rows] and the round of each [rows]."""
    if not len(rounds.labels):
        raise SapwoodError("no drafted nodes were recorded; record rounds of a recipe that drafts")
    inputs = np.concatenate([features(tree)[1:] for tree in rounds.trees()])
    known = rounds.labels != UNKNOWN
    owner = np.repeat(np.arange(len(rounds)), rounds.nodes)
    return inputs[known], rounds.labels[known], owner[known]


def thinned(labels: IntArray, ours: np.ndarray, seed: int) -> tuple[np.ndarray, float]:
    """Our rows with at most MOST refused ones, and the share of those that stayed."""
    refused = np.flatnonzero(ours & (labels == 0))
    if len(refused) <= MOST:
        return ours, 1.0
    dropped = np.random.default_rng(seed).permutation(refused)[MOST:]
    left = ours.copy()
    left[dropped] = False
    return left, MOST / len(refused)

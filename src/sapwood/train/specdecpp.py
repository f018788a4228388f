"""Fits the head of SpecDec++ (arXiv 2405.19715): from the drafter's state to "this token will be accepted".

A wide state is first made narrow, which a recording of minutes needs: the paper's blocks at full width
have more weights than such a recording has rows. Then residual blocks x + SiLU(Wx + b), each with weights
of its own, and one log odds of acceptance (the paper's two-way softmax, written as the difference). The
label is what happened to a drafted token whose parent was accepted; refusals weigh six times, as in the
paper, which makes the head cautious: the calibration that is reported is that of its chances with the
weight taken back out.
"""

import numpy as np
import torch
from torch import Tensor

from sapwood.arrays import FloatArray, IntArray
from sapwood.errors import SapwoodError
from sapwood.nets import Bundle, begin, sigmoid
from sapwood.policies.specdecpp import KIND
from sapwood.train.rounds import Rounds, spans
from sapwood.train.small import Fit, Plan, Report, calibration, leaning, log_loss, minimise, odds, ranking

PLAN = Plan(epochs=100, batch=128, rate=1e-3, decay=1e-2)


def fit(
    rounds: Rounds,
    *,
    inner: int = 128,  # width of the blocks, where the state is wider
    blocks: int = 3,  # residual blocks
    weight: float = 6.0,  # of a refusal against an acceptance
    share: float = 0.2,  # of the prompts to test on
    plan: Plan = PLAN,
    seed: int = 0,
) -> Fit:
    """The head that tells accepted from refused tokens by the drafter's state."""
    states, labels, owner = rows(rounds)
    held = rounds.held_out(share, seed)[owner]
    target = torch.from_numpy(labels.astype(np.float32))
    price = torch.where(target > 0.5, 1.0, weight)

    def loss(outputs: Tensor, index: Tensor) -> Tensor:
        each = torch.nn.functional.binary_cross_entropy_with_logits(outputs[:, 0], target[index], reduction="none")
        return (price[index] * each).sum() / price[index].sum()

    width, base = states.shape[1], float(labels[~held].mean())
    inside = [inner] * (blocks + 1) if width > inner else [width] * blocks
    start = begin([width, *inside, 1], seed, activation="silu", residual=True)
    net = minimise(leaning(start, odds(base) - np.log(weight)), states, loss, ~held, plan, seed)
    said = sigmoid(net(states[held])[:, 0].astype(np.float64) + np.log(weight))
    seen = labels[held]
    report = Report(
        kind=KIND,
        rows=int((~held).sum()),
        held=int(held.sum()),
        before=log_loss(np.full(len(seen), base), seen),
        after=log_loss(said, seen),
        scores={"ranking": ranking(said, seen), "calibration": calibration(said, seen), "accepted": float(seen.mean())},
    )
    return Fit(Bundle(KIND, {"head": net}, {"blocks": blocks, "weight": weight}), report)


def rows(rounds: Rounds) -> tuple[FloatArray, IntArray, IntArray]:
    """States [rows, width], whether their tokens were accepted [rows], and the round of each [rows]."""
    if not len(rounds.states):
        raise SapwoodError("no drafter states were recorded; record rounds with a trained drafter such as eagle3")
    owner = np.repeat(np.arange(len(rounds)), rounds.kept)
    first = np.array([part.start for part in spans(rounds.nodes)])
    return rounds.states.astype(np.float32), rounds.labels[first[owner] + rounds.owners - 1], owner

"""Fits the draft length predictor of AdaEAGLE (arXiv 2412.18910), on a quantile of the accepted length.

The paper weighs a length predicted too short by a free constant. That constant has a right value: with
a price c (in tokens) of one more drafted token, drafting the k-th pays while P(accepted >= k) >= c, so
the best length is the (1 - c)-quantile of the accepted length, and the loss is that quantile's own. A
round that was accepted to its last level says only "at least so much"; a prediction above that level is
not held against it (Powell's censored quantile regression). Drafts are priced as chains, one row a level.
"""

import numpy as np
import torch
from torch import Tensor

from sapwood.arrays import BoolArray, FloatArray, IntArray
from sapwood.controllers.ldlp import KIND
from sapwood.cost import CostCurve
from sapwood.errors import SapwoodError
from sapwood.nets import Bundle, begin
from sapwood.train.replay import Prices, priced, speed
from sapwood.train.rounds import Rounds
from sapwood.train.small import Fit, Plan, Report, leaning, minimise

PLAN = Plan(epochs=150, batch=64, rate=1e-3, decay=1e-2, patience=20)
LEAST, MOST = 0.1, 0.95  # quantiles that still mean a length


def fit(
    rounds: Rounds,
    embedding: FloatArray,  # [vocab, width] of the target
    *,
    layer: int,  # whose input the rounds kept as `before`
    cost: CostCurve | None = None,  # of a target pass; None takes every tree for equally dear
    quantile: float | None = None,  # of the accepted length; None derives it from the measured prices
    share: float = 0.2,  # of the prompts to test on
    plan: Plan = PLAN,
    seed: int = 0,
) -> Fit:
    """The predictor of the length that pays most."""
    heights = rounds.heights()
    use = (heights > 0) & states_kept(rounds)
    prices, held = priced(rounds, cost), rounds.held_out(share, seed)[use]
    length, cap, context = rounds.accepted[use], heights[use], rounds.context[use]
    if quantile is None:
        rate = speed(length + 1.0, (rounds.draft + rounds.verify)[use])
        spent = prices.token(rate, int(np.median(cap)), int(np.median(context)))
        quantile = float(np.clip(1 - spent, LEAST, MOST))
    inputs = np.concatenate((rounds.before[use].astype(np.float32), embedding[rounds.root[use]]), axis=1)
    answer, most = (torch.from_numpy(values.astype(np.float32)) for values in (length, cap))

    def loss(outputs: Tensor, index: Tensor) -> Tensor:
        short = answer[index] - torch.minimum(outputs[:, 0], most[index])
        return torch.maximum(quantile * short, (quantile - 1) * short).mean()

    constant = float(np.quantile(length[~held], quantile))
    start = leaning(begin([inputs.shape[1], 256, 64, 1], seed), constant)
    net = minimise(start, inputs, loss, ~held, plan, seed)
    said = np.clip(np.rint(net(inputs[held])[:, 0]), 0, None).astype(np.int64)
    tested = torch.from_numpy(np.flatnonzero(held))
    report = Report(
        kind=KIND,
        rows=int((~held).sum()),
        held=int(held.sum()),
        before=float(loss(torch.full((len(tested), 1), constant), tested)),
        after=float(loss(torch.from_numpy(net(inputs[held])), tested)),
        scores=compare(said, length, cap, context, held, prices) | {"quantile": quantile},
    )
    return Fit(Bundle(KIND, {"length": net}, {"layer": layer, "quantile": quantile}), report)


def states_kept(rounds: Rounds) -> BoolArray:
    """True for rounds that kept the target's state before their root, [rounds]."""
    if not rounds.before.shape[1]:
        raise SapwoodError("no target states were recorded; record rounds with layer=final_layer(target)")
    return ~np.isnan(rounds.before[:, 0])


def compare(
    said: IntArray, length: IntArray, cap: IntArray, context: IntArray, held: BoolArray, prices: Prices
) -> dict[str, float]:
    """Tokens per second, replayed on held-out rounds: of the predictions, and of the best constant of the others."""

    def replay(depths: IntArray, rows: BoolArray) -> float:
        drafted = np.minimum(depths, cap[rows])  # beyond its last level a recorded round shows nothing
        seconds = [prices.seconds(int(d), int(d), int(c)) for d, c in zip(drafted, context[rows], strict=True)]
        return speed(np.minimum(length[rows], drafted) + 1.0, np.array(seconds))

    def constant(depth: int, rows: BoolArray) -> float:
        return replay(np.full(int(rows.sum()), depth), rows)

    best = max(range(int(cap.max()) + 1), key=lambda depth: constant(depth, ~held))
    return {
        "tokens per second": replay(said, held),
        "best constant": constant(best, held),
        "constant": float(best),
        "perfect": replay(length[held], held),
    }

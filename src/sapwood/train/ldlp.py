"""Fits AdaEAGLE's draft length predictor (arXiv 2412.18910), a quantile of the accepted length.

The paper weighs a length predicted too short by a free constant. That constant has a right value:
with a price c (in tokens) of one more drafted token, drafting the k-th pays while P(accepted >= k)
>= c, so the best length is the (1 - c)-quantile of the accepted length, and the loss is that
quantile's own. A round that was accepted to its last level shows only a lower bound; a prediction
above that level is not penalised (Powell's censored quantile regression). Drafts are priced as
chains, one row a level.
"""

import numpy as np
import torch
from torch import Tensor

from sapwood.common.numpy_mlp import MlpBundle, random_mlp
from sapwood.controllers.ldlp import KIND
from sapwood.core.array_types import BoolArray, FloatArray, IntArray
from sapwood.engine.cost_model import CostModel
from sapwood.errors import SapwoodError
from sapwood.train.fit_mlp import FitReport, FitResult, FitSettings, minimise, with_output_bias
from sapwood.train.replay import ReplayPrices, priced, speed
from sapwood.train.rounds import RecordedRounds

PLAN = FitSettings(epochs=150, batch=64, rate=1e-3, decay=1e-2, patience=20)
# quantiles that still mean a length
LEAST = 0.1
MOST = 0.95


def fit(
    rounds: RecordedRounds,
    embedding: FloatArray,  # [vocab, width] of the target
    *,
    layer: int,  # whose input the rounds kept as `before`
    cost: CostModel | None = None,  # of a target pass; None: every tree costs the same
    # of the accepted length; None derives it from the measured prices
    quantile: float | None = None,
    share: float = 0.2,  # of the prompts to test on
    plan: FitSettings = PLAN,
    seed: int = 0,
) -> FitResult:
    """Fit the predictor of the best draft length."""
    heights = rounds.heights()
    use = (heights > 0) & states_kept(rounds)
    prices = priced(rounds, cost)
    held = rounds.held_out(share, seed)[use]
    length = rounds.accepted[use]
    cap = heights[use]
    context = rounds.context[use]
    if quantile is None:
        rate = speed(length + 1.0, (rounds.draft + rounds.verify)[use])
        spent = prices.token(rate, int(np.median(cap)), int(np.median(context)))
        quantile = float(np.clip(1 - spent, LEAST, MOST))
    inputs = np.concatenate(
        (rounds.before[use].astype(np.float32), embedding[rounds.root[use]]), axis=1
    )
    answer, most = (torch.from_numpy(values.astype(np.float32)) for values in (length, cap))

    def loss(outputs: Tensor, index: Tensor) -> Tensor:
        short = answer[index] - torch.minimum(outputs[:, 0], most[index])
        return torch.maximum(quantile * short, (quantile - 1) * short).mean()

    constant = float(np.quantile(length[~held], quantile))
    start = with_output_bias(random_mlp([inputs.shape[1], 256, 64, 1], seed), constant)
    net = minimise(start, inputs, loss, ~held, plan, seed)
    predicted = np.clip(np.rint(net(inputs[held])[:, 0]), 0, None).astype(np.int64)
    tested = torch.from_numpy(np.flatnonzero(held))
    report = FitReport(
        kind=KIND,
        rows=int((~held).sum()),
        held=int(held.sum()),
        before=float(loss(torch.full((len(tested), 1), constant), tested)),
        after=float(loss(torch.from_numpy(net(inputs[held])), tested)),
        scores=compare(predicted, length, cap, context, held, prices) | {"quantile": quantile},
    )
    return FitResult(
        MlpBundle(KIND, {"length": net}, {"layer": layer, "quantile": quantile}), report
    )


def states_kept(rounds: RecordedRounds) -> BoolArray:
    """True for rounds that kept the target's state before their root, [rounds]."""
    if not rounds.before.shape[1]:
        raise SapwoodError(
            "no target states were recorded; record rounds with layer=final_layer(target)"
        )
    return ~np.isnan(rounds.before[:, 0])


def compare(
    predicted: IntArray,
    length: IntArray,
    cap: IntArray,
    context: IntArray,
    held: BoolArray,
    prices: ReplayPrices,
) -> dict[str, float]:
    """Replayed tokens per second on held-out rounds: of the predictions, of the best constant."""

    def replay(depths: IntArray, rows: BoolArray) -> float:
        drafted = np.minimum(depths, cap[rows])  # nothing is recorded beyond the last level
        seconds = [
            prices.seconds(int(d), int(d), int(c))
            for d, c in zip(drafted, context[rows], strict=True)
        ]
        return speed(np.minimum(length[rows], drafted) + 1.0, np.array(seconds))

    def constant(depth: int, rows: BoolArray) -> float:
        return replay(np.full(int(rows.sum()), depth), rows)

    best = max(range(int(cap.max()) + 1), key=lambda depth: constant(depth, ~held))
    return {
        "tokens per second": replay(predicted, held),
        "best constant": constant(best, held),
        "constant": float(best),
        "perfect": replay(length[held], held),
    }

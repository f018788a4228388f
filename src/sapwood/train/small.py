"""Fits small networks in seconds on a CPU, and says how well they do on what they have not seen."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sapwood.arrays import BoolArray, FloatArray, IntArray
from sapwood.errors import SapwoodError
from sapwood.nets import Bundle, Net, square

Loss = Callable[[Tensor, Tensor], Tensor]  # (outputs of these rows, row numbers) -> a mean


@dataclass(frozen=True)
class Plan:
    """How long and how fast to fit."""

    epochs: int = 60  # most passes over the rows
    batch: int = 512
    rate: float = 1e-3  # of Adam
    decay: float = 1e-3  # pull of the weights toward zero
    patience: int = 10  # epochs without progress before the end


@dataclass(frozen=True)
class Report:
    """How a fit went; losses and scores are those of held-out rows."""

    kind: str
    rows: int  # fitted on
    held: int  # tested on
    before: float  # loss of the best constant answer
    after: float
    scores: dict[str, float] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """As stored beside the weights."""
        return asdict(self)


@dataclass(frozen=True)
class Fit:
    """A trained part and its report."""

    bundle: Bundle
    report: Report

    def save(self, folder: Path, **notes: Any) -> None:
        """Write the part with its report, and whatever else is worth knowing about its making."""
        facts = {**self.bundle.facts, "report": self.report.to_json(), **notes}
        replace(self.bundle, facts=facts).save(folder)


def leaning(net: Net, *values: float) -> Net:
    """The network with these outputs to begin with, whatever the input."""
    return replace(net, biases=[*net.biases[:-1], np.array(values, np.float32)])


def standardise(net: Net, inputs: FloatArray) -> Net:
    """The network with inputs of mean 0 and deviation 1; constant inputs are only centred."""
    rows = inputs.reshape(-1, inputs.shape[-1]).astype(np.float64)
    scale = rows.std(0)
    scale[scale < 1e-6] = 1.0
    return replace(net, mean=rows.mean(0).astype(np.float32), scale=scale.astype(np.float32))


def minimise(net: Net, inputs: FloatArray, loss: Loss, ours: BoolArray, plan: Plan, seed: int) -> Net:
    """Fit the network on our rows; a sixth of them, left out of the steps, chooses the best epoch."""
    rows = np.random.default_rng(seed).permutation(np.flatnonzero(ours))
    cut = max(1, len(rows) // 6)
    if len(rows) < 2:
        raise SapwoodError(f"a fit needs at least two rows to learn from, not {len(rows)}; record more rounds")
    net = standardise(net, inputs[rows])
    values = torch.from_numpy(((inputs - net.mean) / net.scale).astype(np.float32))
    tested, learned = torch.from_numpy(rows[:cut]), torch.from_numpy(rows[cut:])
    weights = [torch.tensor(value, requires_grad=True) for value in (*net.weights, *net.biases)]
    order = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(weights, lr=plan.rate, weight_decay=plan.decay)

    def test() -> float:
        with torch.no_grad():
            return float(loss(forward(weights, values[tested], net), tested))

    best, least, since = copies(weights), test(), 0
    for _ in range(plan.epochs):
        mixed = learned[torch.randperm(len(learned), generator=order)]
        for batch in torch.split(mixed, plan.batch):
            optimizer.zero_grad()
            loss(forward(weights, values[batch], net), batch).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        since += 1
        if (now := test()) < least - 1e-6:
            best, least, since = copies(weights), now, 0
        if since >= plan.patience:
            break
    half = len(best) // 2
    return replace(net, weights=best[:half], biases=best[half:])


def copies(weights: list[Tensor]) -> list[FloatArray]:
    """The present values."""
    return [weight.detach().clone().numpy() for weight in weights]


def forward(weights: list[Tensor], values: Tensor, net: Net) -> Tensor:
    """The network on standardised inputs, as `Net` computes it."""
    act = {"relu": torch.relu, "silu": torch.nn.functional.silu}[net.activation]
    half = len(weights) // 2
    for weight, bias in zip(weights[: half - 1], weights[half:-1], strict=True):
        after = act(torch.nn.functional.linear(values, weight, bias))
        values = values + after if net.residual and square(weight) else after
    return torch.nn.functional.linear(values, weights[half - 1], weights[-1])


# ------------------------------------------------------------------------------------------- scores
def odds(share: float) -> float:
    """Log odds of a share, within bounds."""
    share = min(max(share, 1e-4), 1 - 1e-4)
    return float(np.log(share / (1 - share)))


def log_loss(chance: FloatArray, label: IntArray | BoolArray | FloatArray) -> float:
    """Mean of -ln of the chance given to what happened."""
    chance = np.clip(chance.astype(np.float64), 1e-7, 1 - 1e-7)
    return float(-np.mean(label * np.log(chance) + (1 - label) * np.log1p(-chance)))


def calibration(chance: FloatArray, label: IntArray | BoolArray | FloatArray, bins: int = 10) -> float:
    """Mean gap between what was said and what happened, over bins of equally many rows."""
    order = np.argsort(chance, kind="stable")
    parts = [part for part in np.array_split(order, bins) if len(part)]
    return float(sum(len(part) * abs(chance[part].mean() - label[part].mean()) for part in parts) / len(order))


def ranking(chance: FloatArray, label: IntArray | BoolArray | FloatArray) -> float:
    """How often a yes is ranked above a no (the area under the ROC curve); 0.5 where there is only one of them."""
    yes = label > 0.5
    pairs = int(yes.sum()) * int((~yes).sum())
    if not pairs:
        return 0.5
    values, places = np.unique(chance, return_inverse=True)
    counts = np.bincount(places, minlength=len(values))
    middle = np.cumsum(counts) - (counts - 1) / 2  # ranks from 1, shared by equals
    return float((middle[places][yes].sum() - yes.sum() * (yes.sum() + 1) / 2) / pairs)

"""Fits small MLPs in seconds on a CPU, and scores them on held-out rows."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sapwood.common.numpy_mlp import MlpBundle, NumpyMlp, square
from sapwood.core.array_types import BoolArray, FloatArray, IntArray
from sapwood.errors import SapwoodError

Loss = Callable[[Tensor, Tensor], Tensor]  # (outputs of these rows, row numbers) -> a mean


@dataclass(frozen=True)
class FitSettings:
    """Length and learning rate of a fit."""

    epochs: int = 60  # most passes over the rows
    batch: int = 512
    rate: float = 1e-3  # of Adam
    decay: float = 1e-3  # weight decay
    patience: int = 10  # epochs without progress before the end


@dataclass(frozen=True)
class FitReport:
    """Result of a fit; losses and scores are those of held-out rows."""

    kind: str
    rows: int  # fitted on
    held: int  # tested on
    before: float  # loss of the best constant prediction
    after: float
    scores: dict[str, float] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The report as JSON, for the file beside the weights."""
        return asdict(self)


@dataclass(frozen=True)
class FitResult:
    """A trained part and its report."""

    bundle: MlpBundle
    report: FitReport

    def save(self, folder: Path, **notes: Any) -> None:
        """Write the part with its report and further notes."""
        facts = {**self.bundle.facts, "report": self.report.to_json(), **notes}
        replace(self.bundle, facts=facts).save(folder)


def with_output_bias(net: NumpyMlp, *values: float) -> NumpyMlp:
    """The network with these values as output bias."""
    return replace(net, biases=[*net.biases[:-1], np.array(values, np.float32)])


def standardise(net: NumpyMlp, inputs: FloatArray) -> NumpyMlp:
    """The network with inputs of mean 0 and deviation 1; constant inputs are only centred."""
    rows = inputs.reshape(-1, inputs.shape[-1]).astype(np.float64)
    scale = rows.std(0)
    scale[scale < 1e-6] = 1.0
    return replace(net, mean=rows.mean(0).astype(np.float32), scale=scale.astype(np.float32))


def minimise(
    net: NumpyMlp, inputs: FloatArray, loss: Loss, ours: BoolArray, plan: FitSettings, seed: int
) -> NumpyMlp:
    """Fit the network on the rows `ours`, a sixth of which is left out to choose the best epoch."""
    rows = np.random.default_rng(seed).permutation(np.flatnonzero(ours))
    cut = max(1, len(rows) // 6)
    if len(rows) < 2:
        raise SapwoodError(
            f"a fit needs at least two rows to learn from, not {len(rows)}; record more rounds"
        )
    net = standardise(net, inputs[rows])
    values = torch.from_numpy(((inputs - net.mean) / net.scale).astype(np.float32))
    tested = torch.from_numpy(rows[:cut])
    learned = torch.from_numpy(rows[cut:])
    weights = [torch.tensor(value, requires_grad=True) for value in (*net.weights, *net.biases)]
    order = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(weights, lr=plan.rate, weight_decay=plan.decay)

    def test() -> float:
        with torch.no_grad():
            return float(loss(forward(weights, values[tested], net), tested))

    best = copies(weights)
    least = test()
    since = 0
    for _ in range(plan.epochs):
        mixed = learned[torch.randperm(len(learned), generator=order)]
        for batch in torch.split(mixed, plan.batch):
            optimizer.zero_grad()
            loss(forward(weights, values[batch], net), batch).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        since += 1
        if (now := test()) < least - 1e-6:
            best = copies(weights)
            least = now
            since = 0
        if since >= plan.patience:
            break
    half = len(best) // 2
    return replace(net, weights=best[:half], biases=best[half:])


def copies(weights: list[Tensor]) -> list[FloatArray]:
    """Copies of the present values."""
    return [weight.detach().clone().numpy() for weight in weights]


def forward(weights: list[Tensor], values: Tensor, net: NumpyMlp) -> Tensor:
    """The network on standardised inputs, as `NumpyMlp` computes it."""
    act = {"relu": torch.relu, "silu": torch.nn.functional.silu}[net.activation]
    half = len(weights) // 2
    for weight, bias in zip(weights[: half - 1], weights[half:-1], strict=True):
        after = act(torch.nn.functional.linear(values, weight, bias))
        values = values + after if net.residual and square(weight) else after
    return torch.nn.functional.linear(values, weights[half - 1], weights[-1])


# ----------------------------------------------------------------------------------- scores
def odds(share: float) -> float:
    """Log odds of a share, clipped."""
    share = min(max(share, 1e-4), 1 - 1e-4)
    return float(np.log(share / (1 - share)))


def log_loss(chance: FloatArray, label: IntArray | BoolArray | FloatArray) -> float:
    """Mean negative log-likelihood of the labels."""
    chance = np.clip(chance.astype(np.float64), 1e-7, 1 - 1e-7)
    return float(-np.mean(label * np.log(chance) + (1 - label) * np.log1p(-chance)))


def calibration(
    chance: FloatArray, label: IntArray | BoolArray | FloatArray, bins: int = 10
) -> float:
    """Mean gap between predicted and true shares, over bins of equally many rows."""
    order = np.argsort(chance, kind="stable")
    parts = [part for part in np.array_split(order, bins) if len(part)]
    return float(
        sum(len(part) * abs(chance[part].mean() - label[part].mean()) for part in parts)
        / len(order)
    )


def ranking(chance: FloatArray, label: IntArray | BoolArray | FloatArray) -> float:
    """Area under the ROC curve; 0.5 if all labels are equal."""
    yes = label > 0.5
    pairs = int(yes.sum()) * int((~yes).sum())
    if not pairs:
        return 0.5
    values, places = np.unique(chance, return_inverse=True)
    counts = np.bincount(places, minlength=len(values))
    middle = np.cumsum(counts) - (counts - 1) / 2  # ranks from 1, shared by equals
    return float((middle[places][yes].sum() - yes.sum() * (yes.sum() + 1) / 2) / pairs)

"""An objective, a teacher and texts so small that a training step takes a millisecond."""

from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from sapwood.core.array_types import IntArray
from sapwood.train.batches import TrainBatch
from sapwood.train.corpus import Corpus
from sapwood.train.loop import LoopSettings, TrainingLoop
from sapwood.train.objective import LossResult

VOCAB = 11
WIDTH = 4


class ToyTeacher:
    """Final states are the rows of a fixed table."""

    vocab = VOCAB
    width = WIDTH
    device = torch.device("cpu")

    def __init__(self, model: str = "toy") -> None:
        self.backend = SimpleNamespace(info=SimpleNamespace(model=model, context=64))
        self.table = torch.randn(VOCAB, WIDTH, generator=torch.Generator().manual_seed(0))
        self.read_tokens: list[list[list[int]]] = []  # of every batch

    def read(self, tokens: Tensor, layers: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        """Inputs of layers are multiples of the final states."""
        self.read_tokens.append(tokens.tolist())
        final = self.table[tokens]
        parts = [final * (1 + layer) for layer in layers]
        return (torch.cat(parts, -1) if parts else final[..., :0]), final


class ToyHead(nn.Module):
    """A matrix and a bias."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)


@dataclass(frozen=True)
class ToyObjective:
    """Teach a head to turn every state into its negative."""

    layers: tuple[int, ...] = ()
    rate: float = 0.02
    matrix_rate: float = 0.02
    blow_up: int | None = None  # batch from which on the loss is no number
    seen: list[Tensor] = field(default_factory=list, compare=False, repr=False)  # features

    kind: ClassVar[str] = "toy"

    def features(self, teacher: Any) -> tuple[int, ...]:
        """The layers that were asked for."""
        return self.layers

    def build(self, teacher: Any, counts: IntArray) -> ToyHead:
        """A fresh head."""
        return ToyHead()

    def loss(self, head: Any, teacher: Any, batch: TrainBatch) -> LossResult:
        """Squared distance from the negative of the final states."""
        self.seen.append(batch.features)
        texts, places = batch.labelled_places()
        states = batch.final[texts, places]
        loss = ((head.inner(states) + states) ** 2).mean()
        if self.blow_up is not None and len(self.seen) > self.blow_up:
            loss = loss * float("nan")
        return LossResult(loss, torch.stack([loss.detach() / 10, loss.detach() / 20]))


def corpus(texts: int = 24, seed: int = 0) -> Corpus:
    """Texts of five to eight tokens, of which the first two are the prompt."""
    rng = np.random.default_rng(seed)
    made = [rng.integers(0, VOCAB, size).astype(np.int32) for size in rng.integers(5, 9, texts)]
    starts = np.cumsum([0, *map(len, made)])
    return Corpus(np.concatenate(made), starts, np.full(texts, 2, np.int32))


def loop(state: Path, objective: Any = None, **options: Any) -> TrainingLoop:
    """A run of a few steps; options that are not settings go to the loop itself."""
    own = {
        key: options.pop(key)
        for key in ("report", "asked_to_stop", "now", "asked")
        if key in options
    }
    teacher: Any = options.pop("teacher", None) or ToyTeacher()
    texts = options.pop("corpus", None) or corpus()
    settings = LoopSettings(**{"steps": 12, "tokens": 256, "save": 1e9, "tell": 1e9, **options})
    return TrainingLoop(objective or ToyObjective(), teacher, texts, settings, state, **own)


def weights(head: nn.Module) -> list[float]:
    """All weights in a row."""
    return [number for weight in head.parameters() for number in weight.detach().flatten().tolist()]

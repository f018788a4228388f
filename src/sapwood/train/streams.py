"""Training of speculative streams (arXiv 2402.11131): their start, embeddings and adapters learn.

Streams of random places of a text are compared with the target's probs at the places that they
stand for. The paper tunes the model itself with them; here it stays as it is.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from sapwood.core.array_types import IntArray
from sapwood.core.lookahead import RowGate
from sapwood.core.part import at_least
from sapwood.heads.gated_lora import linear_layers
from sapwood.heads.streams import StreamsConfig, StreamsHead
from sapwood.train.batches import TrainBatch
from sapwood.train.lookahead_rows import PackedTexts, packed_texts, run_packed
from sapwood.train.objective import LossResult
from sapwood.train.teacher import Teacher


@dataclass(frozen=True)
class StreamsObjective:
    """Train speculative streams."""

    rows: int = 4  # streams of a token, >= 1
    layers: int = 4  # upper layers that they go through, >= 1
    rank: int = 32  # of the adapters, >= 1
    places: int = 8  # of a text, whose streams are run at once, >= 1
    rate: float = 1e-3
    matrix_rate: float = 1e-3

    kind: ClassVar[str] = "streams"

    def __post_init__(self) -> None:
        at_least(1, rows=self.rows, layers=self.layers, rank=self.rank, places=self.places)

    def features(self, teacher: Teacher) -> tuple[int, ...]:
        """None: the target runs over the rows themselves."""
        return ()

    def build(self, teacher: Teacher, counts: IntArray) -> StreamsHead:
        """Streams that begin as the token's own state, and adapters that change nothing."""
        first = max(0, teacher.layers - self.layers)
        layers = linear_layers(teacher.model, first)
        config = StreamsConfig(
            teacher.width,
            teacher.vocab,
            self.rows,
            self.rank,
            first,
            tuple(layer.in_features for layer in layers),
            tuple(layer.out_features for layer in layers),
        )
        head = StreamsHead(config).to(teacher.device)
        with torch.no_grad():
            head.embeds.copy_(0.01 * torch.randn_like(head.embeds))
        head.attach(teacher.embedding, teacher.head)
        return head

    def loss(self, head: StreamsHead, teacher: Teacher, batch: TrainBatch) -> LossResult:
        """Compare each stream with the target at the place that it stands for."""
        texts = packed_texts(batch, self.rows, self.places)
        states = self.states(head, teacher, batch, texts).flatten(0, 1)
        final = texts.targets(batch.final).flatten(0, 1)
        goal = teacher.target_probs(final.flatten(0, 1)).float()
        logits = (states.flatten(0, 1) @ teacher.head.t()).float()
        right = (logits.argmax(-1) == goal.argmax(-1)).float().view(-1, self.rows).mean(0)
        return LossResult(F.cross_entropy(logits, goal), right)

    def states(
        self, head: StreamsHead, teacher: Teacher, batch: TrainBatch, texts: PackedTexts
    ) -> Tensor:
        """Final states of the streams, [batch, places, rows, width]."""
        first, stop = texts.text, len(texts.packed.places)
        rows = torch.arange(first, stop, device=batch.tokens.device)
        gate = RowGate(rows, texts.anchors.repeat_interleave(self.rows))
        with head.installed(teacher.model, gate):
            return run_packed(teacher, batch.tokens, head.embeds, texts)

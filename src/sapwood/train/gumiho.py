"""Training of Gumiho's head (arXiv 2503.10135): states and probs of the target at every place.

The serial heads are unrolled on their own output, as when they draft; the parallel heads read what
the serial ones made.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from sapwood.core.array_types import IntArray
from sapwood.core.part import at_least, between
from sapwood.heads.gumiho import SERIAL, GumihoConfig, GumihoHead
from sapwood.heads.text_layers import causal, scale_outputs_down
from sapwood.train.batches import TrainBatch
from sapwood.train.eagle import distance
from sapwood.train.head_losses import share_tables
from sapwood.train.labels import decayed_loss, label
from sapwood.train.objective import LossResult
from sapwood.train.teacher import Teacher
from sapwood.train.unrolled import Keys, attend


@dataclass(frozen=True)
class GumihoObjective:
    """Train a Gumiho head."""

    heads: int = 6  # places in all, of which two are serial
    layers: int = 2  # of the serial heads
    blocks: int = 2  # of each parallel head
    narrow: int = 0  # width of the parallel heads; 0: a third of the target's
    decay: float = 0.8  # weight of each place against the one before
    state: float = 0.1  # weight of the distance between states
    word: float = 1.0  # weight of the cross entropy
    hard: float = 0.3  # share of the label that is the target's first choice alone
    vocabulary: int = 16_384  # tokens the head can propose
    inner: int = 256  # width of the layers' MLPs; 0: the target's
    rate: float = 2e-3
    matrix_rate: float = 8e-3

    kind: ClassVar[str] = "gumiho"

    def __post_init__(self) -> None:
        at_least(1, layers=self.layers, vocabulary=self.vocabulary)
        at_least(0, narrow=self.narrow)
        at_least(SERIAL + 1, heads=self.heads)
        between(0, 1, hard=self.hard)

    def features(self, teacher: Teacher) -> tuple[int, ...]:
        """None: the head reads final states."""
        return ()

    def build(self, teacher: Teacher, counts: IntArray) -> GumihoHead:
        """A head whose places all begin close to the state they read."""
        config = GumihoConfig(
            shape=teacher.shape(self.inner),
            vocab=teacher.vocab,
            draft_vocab=min(self.vocabulary, teacher.vocab),
            heads=self.heads,
            layers=self.layers,
            blocks=self.blocks,
            narrow=self.narrow or -(-teacher.width // 3),
        )
        head = GumihoHead(config).to(teacher.device)
        share_tables(head, teacher, counts)
        scale_outputs_down(head.layers)
        return head

    def loss(self, head: GumihoHead, teacher: Teacher, batch: TrainBatch) -> LossResult:
        """Compare every place with the target: its states, and the probs made from them."""
        labels = label(head, teacher, batch, self.hard)
        goal = batch.final[labels.texts, labels.places]
        losses = []
        agreement = []
        for step, states in enumerate(unroll(head, batch)):
            rows, weights = labels.rows(step)
            found = states[labels.texts, rows]
            loss, right = labels.loss(found, head.output, weights)
            losses.append(self.word * loss + self.state * (weights * distance(found, goal)).sum())
            agreement.append(right)
        return decayed_loss(losses, agreement, self.decay)


def unroll(head: GumihoHead, batch: TrainBatch) -> list[Tensor]:
    """Outputs [batch, rows, width] of every place, for all positions at once."""
    states = batch.final.to(head.join.fc.weight.dtype)
    embeds = [
        head.embed(F.pad(batch.tokens[:, ahead:], (0, ahead))) for ahead in range(1, SERIAL + 2)
    ]
    positions = torch.arange(batch.tokens.shape[1], device=batch.tokens.device)
    positions = positions.expand_as(batch.tokens)
    seen: list[Keys] = [Keys() for _ in head.layers]
    outputs = []
    for step in range(SERIAL):
        for number, (layer, keys) in enumerate(zip(causal(head.layers), seen, strict=True)):
            states = head.input_rows(number, embeds[step], states)
            query, key, value = layer.project(states, positions + step)
            keys.append((key, value))
            read = layer.self_attn.o_proj(attend(query, keys).transpose(1, 2).flatten(2))
            states = layer.finish(states, read)
        outputs.append(states)
    pairs = torch.stack(embeds[1:], -2), torch.stack(outputs, -2)
    return [*outputs, *head.later(*pairs)]

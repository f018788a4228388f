"""Training of Hydra's heads on the target's own text and laws (arXiv 2402.05109, sections 3 and 4)."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from sapwood.arrays import IntArray
from sapwood.heads.hydra import Hydra, HydraConfig
from sapwood.part import at_least
from sapwood.train.batches import Batch
from sapwood.train.course import Lesson
from sapwood.train.labels import Labels, label, weigh
from sapwood.train.target import Teacher
from sapwood.train.vocabulary import commonest


@dataclass(frozen=True)
class HydraCourse:
    """Teach Hydra's heads."""

    heads: int = 4  # places to look ahead
    blocks: int = 2  # of each head
    inner: int = 288  # width of the blocks
    decay: float = 0.8  # weight of each place against the one before
    hard: float = 0.3  # share of the label that is the target's first choice alone
    vocabulary: int = 16_384  # tokens the heads can propose
    rate: float = 2e-3
    matrix_rate: float = 8e-3

    kind: ClassVar[str] = "hydra"

    def __post_init__(self) -> None:
        at_least(1, heads=self.heads, inner=self.inner, vocabulary=self.vocabulary)

    def features(self, teacher: Teacher) -> tuple[int, ...]:
        """None: the final states are enough."""
        return ()

    def build(self, teacher: Teacher, counts: IntArray) -> Hydra:
        """Heads that all say what the target says now."""
        tokens = commonest(counts, self.vocabulary).to(teacher.device)
        config = HydraConfig(teacher.width, teacher.vocab, self.heads, self.blocks, self.inner, len(tokens))
        head = Hydra(config).to(teacher.device)
        head.use_vocabulary(tokens)
        head.attach(teacher.embedding, teacher.head)
        return head

    def lesson(self, head: Hydra, teacher: Teacher, batch: Batch) -> Lesson:
        """Compare every head with the target at the place it speaks for."""
        labels = label(head, teacher, batch, self.hard)
        judged = [labels.judge(states, head.output, weights) for states, weights in answers(head, batch, labels)]
        losses, agreement = zip(*judged, strict=True)
        return weigh(losses, agreement, self.decay)


def answers(head: Hydra, batch: Batch, labels: Labels) -> Iterator[tuple[Tensor, Tensor]]:
    """For each head what it makes of what it reads [places, width], and the weight of each place."""
    dtype = next(head.parameters()).dtype
    for step in range(len(head.heads)):
        rows, weights = labels.rows(step)
        ahead = rows[:, None] + torch.arange(1, step + 2, device=rows.device)  # the tokens known to this head
        tokens = batch.tokens[labels.texts[:, None], ahead]
        yield head.states(batch.final[labels.texts, rows].to(dtype), tokens), weights

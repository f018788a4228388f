"""Training of Medusa's heads: each against the target's law at its own place (arXiv 2401.10774, section 2.2)."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from sapwood.arrays import IntArray
from sapwood.heads.medusa import Medusa, MedusaConfig
from sapwood.part import at_least
from sapwood.train.batches import Batch
from sapwood.train.course import Lesson
from sapwood.train.labels import Labels, label, weigh
from sapwood.train.target import Teacher
from sapwood.train.vocabulary import commonest


@dataclass(frozen=True)
class MedusaCourse:
    """Teach Medusa's heads."""

    heads: int = 5  # places to look ahead
    blocks: int = 1  # of each head
    decay: float = 0.8  # weight of each place against the one before
    hard: float = 0.3  # share of the label that is the target's first choice alone
    vocabulary: int = 16_384  # tokens the heads can propose
    rate: float = 2e-3
    matrix_rate: float = 8e-3

    kind: ClassVar[str] = "medusa"

    def __post_init__(self) -> None:
        at_least(1, heads=self.heads, blocks=self.blocks, vocabulary=self.vocabulary)

    def features(self, teacher: Teacher) -> tuple[int, ...]:
        """None: the final states are enough."""
        return ()

    def build(self, teacher: Teacher, counts: IntArray) -> Medusa:
        """Heads that all say what the target says now."""
        tokens = commonest(counts, self.vocabulary).to(teacher.device)
        config = MedusaConfig(
            teacher.width, teacher.vocab, heads=self.heads, blocks=self.blocks, draft_vocab=len(tokens)
        )
        head = Medusa(config).to(teacher.device)
        head.use_vocabulary(tokens)
        head.attach(teacher.embedding, teacher.head)
        return head

    def lesson(self, head: Medusa, teacher: Teacher, batch: Batch) -> Lesson:
        """Compare every head with the target at the place it speaks for."""
        labels = label(head, teacher, batch, self.hard)
        judged = [
            labels.judge(states, head.rows(step), weights)
            for step, (states, weights) in enumerate(answers(head, batch, labels))
        ]
        losses, agreement = zip(*judged, strict=True)
        return weigh(losses, agreement, self.decay)


def answers(head: Medusa, batch: Batch, labels: Labels) -> Iterator[tuple[Tensor, Tensor]]:
    """For each head what it makes of the states it reads [places, width], and the weight of each place."""
    dtype = next(head.parameters()).dtype
    for step, one in enumerate(head.heads):
        rows, weights = labels.rows(step)
        yield one(batch.final[labels.texts, rows].to(dtype)), weights

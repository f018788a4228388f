"""Training of Medusa's heads: each predicts its own place (arXiv 2401.10774, section 2.2)."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from sapwood.core.array_types import IntArray
from sapwood.core.part import at_least
from sapwood.heads.medusa import MedusaConfig, MedusaHeads
from sapwood.train.batches import TrainBatch
from sapwood.train.labels import TargetLabels, decayed_loss, label
from sapwood.train.losses import check_divergence
from sapwood.train.objective import LossResult
from sapwood.train.teacher import Teacher
from sapwood.train.vocabulary import commonest


@dataclass(frozen=True)
class MedusaObjective:
    """Train Medusa's heads."""

    heads: int = 5  # places to look ahead
    blocks: int = 1  # of each head
    decay: float = 0.8  # weight of each place against the one before
    hard: float = 0.3  # share of the label that is the target's first choice alone
    divergence: str = "fkl"  # from the target's probs: fkl, rkl, jsd or tvd
    vocabulary: int = 16_384  # tokens the heads can propose
    rate: float = 2e-3
    matrix_rate: float = 8e-3

    kind: ClassVar[str] = "medusa"

    def __post_init__(self) -> None:
        at_least(1, heads=self.heads, blocks=self.blocks, vocabulary=self.vocabulary)
        check_divergence(self.divergence)

    def features(self, teacher: Teacher) -> tuple[int, ...]:
        """None: the heads read final states."""
        return ()

    def build(self, teacher: Teacher, counts: IntArray) -> MedusaHeads:
        """Heads that all begin with the target's next-token output."""
        tokens = commonest(counts, self.vocabulary).to(teacher.device)
        config = MedusaConfig(
            teacher.width,
            teacher.vocab,
            heads=self.heads,
            blocks=self.blocks,
            draft_vocab=len(tokens),
        )
        head = MedusaHeads(config).to(teacher.device)
        head.use_vocabulary(tokens)
        head.attach(teacher.embedding, teacher.head)
        return head

    def loss(self, head: MedusaHeads, teacher: Teacher, batch: TrainBatch) -> LossResult:
        """Compare every head with the target at the place it predicts."""
        labels = label(head, teacher, batch, self.hard, self.divergence)
        results = [
            labels.loss(states, head.rows(step), weights)
            for step, (states, weights) in enumerate(answers(head, batch, labels))
        ]
        losses, agreement = zip(*results, strict=True)
        return decayed_loss(losses, agreement, self.decay)


def answers(
    head: MedusaHeads, batch: TrainBatch, labels: TargetLabels
) -> Iterator[tuple[Tensor, Tensor]]:
    """Output states of each head [places, width], and the weight of each place."""
    dtype = next(head.parameters()).dtype
    for step, one in enumerate(head.heads):
        rows, weights = labels.rows(step)
        yield one(batch.final[labels.texts, rows].to(dtype)), weights

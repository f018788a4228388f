"""Training of Cerberus' heads: each predicts its own place, all of them together."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from sapwood.core.array_types import IntArray
from sapwood.core.part import at_least
from sapwood.heads.cerberus import CerberusConfig, CerberusHeads
from sapwood.train.batches import TrainBatch
from sapwood.train.labels import TargetLabels, decayed_loss, label
from sapwood.train.objective import LossResult
from sapwood.train.teacher import Teacher
from sapwood.train.vocabulary import commonest


@dataclass(frozen=True)
class CerberusObjective:
    """Train Cerberus' heads."""

    heads: int = 5  # places to look ahead
    blocks: int = 2  # of each head
    decay: float = 0.8  # weight of each place against the one before
    hard: float = 0.3  # share of the label that is the target's first choice alone
    vocabulary: int = 16_384  # tokens the heads can propose
    rate: float = 2e-3
    matrix_rate: float = 8e-3

    kind: ClassVar[str] = "cerberus"

    def __post_init__(self) -> None:
        at_least(1, heads=self.heads, blocks=self.blocks, vocabulary=self.vocabulary)

    def features(self, teacher: Teacher) -> tuple[int, ...]:
        """None: the heads read final states."""
        return ()

    def build(self, teacher: Teacher, counts: IntArray) -> CerberusHeads:
        """Heads that all begin with the target's next-token output."""
        tokens = commonest(counts, self.vocabulary).to(teacher.device)
        config = CerberusConfig(
            teacher.width, teacher.vocab, self.heads, self.blocks, draft_vocab=len(tokens)
        )
        head = CerberusHeads(config).to(teacher.device)
        head.use_vocabulary(tokens)
        head.attach(teacher.embedding, teacher.head)
        return head

    def loss(self, head: CerberusHeads, teacher: Teacher, batch: TrainBatch) -> LossResult:
        """Compare every head with the target at the place it predicts."""
        labels = label(head, teacher, batch, self.hard)
        results = [
            labels.loss(states, head.output, weights)
            for states, weights in answers(head, batch, labels)
        ]
        losses, agreement = zip(*results, strict=True)
        return decayed_loss(losses, agreement, self.decay)


def answers(
    head: CerberusHeads, batch: TrainBatch, labels: TargetLabels
) -> Iterator[tuple[Tensor, Tensor]]:
    """Output states of each head [places, width], and the weight of each place."""
    made = head.states(batch.final.to(next(head.parameters()).dtype))
    for step, states in enumerate(made):
        rows, weights = labels.rows(step)
        yield states[labels.texts, rows], weights

"""Training of Hydra's heads on the target's text and probs (arXiv 2402.05109, sections 3, 4)."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from sapwood.core.array_types import IntArray
from sapwood.core.part import at_least
from sapwood.heads.hydra import HydraConfig, HydraHeads
from sapwood.train.batches import TrainBatch
from sapwood.train.labels import TargetLabels, decayed_loss, label
from sapwood.train.losses import check_divergence
from sapwood.train.objective import LossResult
from sapwood.train.teacher import Teacher
from sapwood.train.vocabulary import commonest


@dataclass(frozen=True)
class HydraObjective:
    """Train Hydra's heads."""

    heads: int = 4  # places to look ahead
    blocks: int = 2  # of each head
    inner: int = 288  # width of the blocks
    decay: float = 0.8  # weight of each place against the one before
    hard: float = 0.3  # share of the label that is the target's first choice alone
    divergence: str = "fkl"  # from the target's probs: fkl, rkl, jsd or tvd
    vocabulary: int = 16_384  # tokens the heads can propose
    rate: float = 2e-3
    matrix_rate: float = 8e-3

    kind: ClassVar[str] = "hydra"

    def __post_init__(self) -> None:
        at_least(1, heads=self.heads, inner=self.inner, vocabulary=self.vocabulary)
        check_divergence(self.divergence)

    def features(self, teacher: Teacher) -> tuple[int, ...]:
        """None: the heads read final states."""
        return ()

    def build(self, teacher: Teacher, counts: IntArray) -> HydraHeads:
        """Heads that all begin with the target's next-token output."""
        tokens = commonest(counts, self.vocabulary).to(teacher.device)
        config = HydraConfig(
            teacher.width, teacher.vocab, self.heads, self.blocks, self.inner, len(tokens)
        )
        head = HydraHeads(config).to(teacher.device)
        head.use_vocabulary(tokens)
        head.attach(teacher.embedding, teacher.head)
        return head

    def loss(self, head: HydraHeads, teacher: Teacher, batch: TrainBatch) -> LossResult:
        """Compare every head with the target at the place it predicts."""
        labels = label(head, teacher, batch, self.hard, self.divergence)
        results = [
            labels.loss(states, head.output, weights)
            for states, weights in answers(head, batch, labels)
        ]
        losses, agreement = zip(*results, strict=True)
        return decayed_loss(losses, agreement, self.decay)


def answers(
    head: HydraHeads, batch: TrainBatch, labels: TargetLabels
) -> Iterator[tuple[Tensor, Tensor]]:
    """Output states of each head [places, width], and the weight of each place."""
    dtype = next(head.parameters()).dtype
    for step in range(len(head.heads)):
        rows, weights = labels.rows(step)
        # the tokens that this head has read
        ahead = rows[:, None] + torch.arange(1, step + 2, device=rows.device)
        tokens = batch.tokens[labels.texts[:, None], ahead]
        yield head.states(batch.final[labels.texts, rows].to(dtype), tokens), weights

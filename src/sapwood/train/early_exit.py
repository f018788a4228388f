"""Training of the early exit: an adapter after the target's first layers replaces the rest.

Kangaroo (arXiv 2404.18911). The adapter reads the input of layer `layer` at every place and is
compared with the target's probs there.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn

from sapwood.core.array_types import IntArray
from sapwood.core.part import at_least, between
from sapwood.heads.early_exit import EarlyExitConfig, EarlyExitHead, check_exits
from sapwood.train.batches import TrainBatch
from sapwood.train.head_losses import compare, equalise, share_weights
from sapwood.train.objective import LossResult
from sapwood.train.teacher import Teacher


@dataclass(frozen=True)
class EarlyExitObjective:
    """Train the adapter of an early exit."""

    layer: int = 0  # layers of the target that are run; 0: a fifth of them
    attention: bool = True  # False: the adapter sees each row alone
    levelled: bool = True  # False: the states are not normalised
    inner: int = 320  # width of its MLP
    hard: float = 0.3  # share of the label that is the target's first choice alone
    vocabulary: int = 16_384  # tokens the adapter can propose
    rate: float = 2e-3
    matrix_rate: float = 8e-3

    kind: ClassVar[str] = "early-exit"

    def __post_init__(self) -> None:
        at_least(1, vocabulary=self.vocabulary, inner=self.inner)
        between(0, 1, hard=self.hard)

    def features(self, teacher: Teacher) -> tuple[int, ...]:
        """The first layer that is skipped."""
        return (self.layer or max(1, teacher.layers // 5),)

    def build(self, teacher: Teacher, counts: IntArray) -> EarlyExitHead:
        """An adapter that begins with the states nearly unchanged, their channels equalised."""
        [layer] = self.features(teacher)
        check_exits(teacher.model, layer)
        shape = teacher.shape(self.inner)
        size = min(self.vocabulary, teacher.vocab)
        config = EarlyExitConfig(shape, teacher.vocab, size, layer, self.attention, self.levelled)
        head = EarlyExitHead(config).to(teacher.device)
        share_weights(head, teacher, counts)
        if self.levelled:
            equalise([head.enter_norm], [layer], teacher, counts)
            nn.init.eye_(head.fc.weight)
        with torch.no_grad():
            head.mlp.down_proj.weight.mul_(0.1)
            if self.attention:
                head.self_attn.o_proj.weight.mul_(0.1)
        return head

    def loss(self, head: EarlyExitHead, teacher: Teacher, batch: TrainBatch) -> LossResult:
        """Compare the adapter's output with the target at all places of a batch."""
        positions = torch.arange(batch.tokens.shape[1], device=batch.tokens.device)[None]
        states = head(
            batch.features.to(head.norm.weight.dtype), position_ids=positions, causal=True
        )
        return compare(head, [states], teacher, batch, hard=self.hard, first=-1)

"""Training of the early exit: the target's first layers stay as they are, the adapter learns to speak for the rest.

Kangaroo (arXiv 2404.18911). The adapter reads the input of layer `layer` at every place and is
compared with the law that all layers of the target make there.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn

from sapwood.arrays import IntArray
from sapwood.heads.early_exit import EarlyExit, EarlyExitConfig, check_exits
from sapwood.part import at_least, between
from sapwood.train.batches import Batch
from sapwood.train.course import Lesson
from sapwood.train.lessons import compare, lend, level
from sapwood.train.target import Teacher


@dataclass(frozen=True)
class EarlyExitCourse:
    """Teach the adapter of an early exit."""

    layer: int = 0  # layers of the target that are run; 0: a fifth of them
    attention: bool = True  # False: the adapter looks at each row for itself
    levelled: bool = True  # False: the states come in as they are
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
        """The first layer that is left out."""
        return (self.layer or max(1, teacher.layers // 5),)

    def build(self, teacher: Teacher, counts: IntArray) -> EarlyExit:
        """An adapter that begins with the states nearly as they are, their numbers made alike in size."""
        [layer] = self.features(teacher)
        check_exits(teacher.model, layer)
        shape, size = teacher.shape(self.inner), min(self.vocabulary, teacher.vocab)
        config = EarlyExitConfig(shape, teacher.vocab, size, layer, self.attention, self.levelled)
        head = EarlyExit(config).to(teacher.device)
        lend(head, teacher, counts)
        if self.levelled:
            level([head.enter_norm], [layer], teacher, counts)
            nn.init.eye_(head.fc.weight)
        with torch.no_grad():
            head.mlp.down_proj.weight.mul_(0.1)
            if self.attention:
                head.self_attn.o_proj.weight.mul_(0.1)
        return head

    def lesson(self, head: EarlyExit, teacher: Teacher, batch: Batch) -> Lesson:
        """Adapt all places of a batch and compare them with the target."""
        positions = torch.arange(batch.tokens.shape[1], device=batch.tokens.device)[None]
        states = head(batch.features.to(head.norm.weight.dtype), position_ids=positions, causal=True)
        return compare(head, [states], teacher, batch, hard=self.hard, first=-1)

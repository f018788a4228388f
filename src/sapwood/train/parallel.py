"""Training of the parallel head: all mask rows of all positions at once.

The mask rows of position t see the text up to t and the rows before them of the same t: the causal
block and the diagonals of `unrolled.attend`, with learned inputs in place of the head's own
outputs.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from sapwood.core.array_types import IntArray
from sapwood.core.part import at_least, between
from sapwood.heads.parallel import ParallelConfig, ParallelHead
from sapwood.train.batches import TrainBatch
from sapwood.train.eagle3 import Eagle3Objective
from sapwood.train.head_losses import compare, equalise, share_weights
from sapwood.train.objective import LossResult
from sapwood.train.teacher import Teacher
from sapwood.train.unrolled import Keys, attend


@dataclass(frozen=True)
class ParallelObjective:
    """Train a parallel head."""

    depth: int = 6  # tokens drafted by one call
    levelled: bool = True  # False: the features are not normalised
    decay: float = 0.85  # weight of each token against the one before
    hard: float = 0.3  # share of the label that is the target's first choice alone
    vocabulary: int = 16_384  # tokens the head can propose
    inner: int = 768  # width of its MLP; 0: the target's
    rate: float = 2e-3
    matrix_rate: float = 8e-3

    kind: ClassVar[str] = "parallel"

    def __post_init__(self) -> None:
        at_least(1, depth=self.depth, vocabulary=self.vocabulary)
        between(0, 1, hard=self.hard)

    def features(self, teacher: Teacher) -> tuple[int, int, int]:
        """A low, a middle and a high layer, as for EAGLE-3."""
        return Eagle3Objective().features(teacher)

    def build(self, teacher: Teacher, counts: IntArray) -> ParallelHead:
        """A head that begins as an early exit: its own layer adds little to the high features."""
        config = ParallelConfig(
            shape=teacher.shape(self.inner),
            target_width=teacher.width,
            vocab=teacher.vocab,
            draft_vocab=min(self.vocabulary, teacher.vocab),
            features=self.features(teacher),
            context=teacher.backend.info.context,
            depth=self.depth,
            levelled=self.levelled,
        )
        head = ParallelHead(config).to(teacher.device)
        begin_as_early_exit(head, teacher, counts)
        return head

    def loss(self, head: ParallelHead, teacher: Teacher, batch: TrainBatch) -> LossResult:
        """Compare every row with the target."""
        steps = rows_of(head, teacher.embedding, batch)
        return compare(head, steps, teacher, batch, hard=self.hard, decay=self.decay)


def begin_as_early_exit(head: ParallelHead, teacher: Teacher, counts: IntArray) -> None:
    """Share the target's tables; the head's own layer adds little to the high features."""
    share_weights(head, teacher, counts)
    if head.config.levelled:
        equalise(list(head.feature_norm), head.config.features, teacher, counts)
    with torch.no_grad():
        head.fc.weight.mul_(0.1)
        head.fc.weight[:, 2 * teacher.width :] += torch.eye(teacher.width, device=teacher.device)
        head.midlayer.self_attn.o_proj.weight.mul_(0.1)
        head.midlayer.mlp.down_proj.weight.mul_(0.1)


def rows_of(head: ParallelHead, embedding: Tensor, batch: TrainBatch) -> list[Tensor]:
    """Outputs [batch, rows, width] of the first row and of each mask row, for every position."""
    layer = head.midlayer
    keys = Keys()
    outputs = []
    states = head.begin(batch.features.to(head.fc.weight.dtype))
    embeds = F.embedding(F.pad(batch.tokens[:, 1:], (0, 1)), embedding).to(states.dtype)
    positions = torch.arange(batch.tokens.shape[1], device=batch.tokens.device).expand_as(
        batch.tokens
    )
    masks = head.masks.to(states.dtype).unbind(1)  # each [2, width]
    inputs = [
        (states, embeds),
        *((mask[0].expand_as(states), mask[1].expand_as(states)) for mask in masks),
    ]
    for step, (state, embed) in enumerate(inputs):
        query, key, value = layer.project(embed, state, positions + step)
        keys.append((key, value))
        read = attend(query, keys)
        outputs.append(layer.finish(state, layer.self_attn.o_proj(read.transpose(1, 2).flatten(2))))
    return outputs

"""The interface between the training loop and a kind of head."""

from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor, nn

from sapwood.core.array_types import IntArray
from sapwood.train.batches import TrainBatch
from sapwood.train.teacher import Teacher


@dataclass(frozen=True, slots=True)
class LossResult:
    """Loss and agreement of one batch."""

    loss: Tensor  # scalar
    # [steps] share of rows where the head's first choice is the target's, by depth
    agreement: Tensor
    parts: tuple["LossResult", ...] = ()  # of each head, if several are trained at once


class Objective(Protocol):
    """Initial weights and loss of one kind of head; options are fields."""

    @property
    def kind(self) -> str:
        """The head's kind."""

    @property
    def rate(self) -> float:
        """Peak learning rate of norms, embeddings and output heads (AdamW)."""

    @property
    def matrix_rate(self) -> float:
        """Peak learning rate of inner matrices (Muon, scaled to AdamW's step)."""

    def features(self, teacher: Teacher) -> tuple[int, ...]:
        """Target layers whose inputs the head reads."""

    def build(self, teacher: Teacher, counts: IntArray) -> nn.Module:
        """A new head on the target's device; `counts` [vocab] are token counts of the corpus."""

    def loss(self, head: Any, teacher: Teacher, batch: TrainBatch) -> LossResult:
        """Loss of one batch."""

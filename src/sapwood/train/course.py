"""What the loop must know to teach one kind of head."""

from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor, nn

from sapwood.arrays import IntArray
from sapwood.train.batches import Batch
from sapwood.train.target import Teacher


@dataclass(frozen=True, slots=True)
class Lesson:
    """The outcome of one batch."""

    loss: Tensor  # scalar, to be lowered
    agreement: Tensor  # [steps] share of rows where the head's first choice is the target's, by depth
    parts: tuple["Lesson", ...] = ()  # of each head, where several are taught at once


class Course(Protocol):
    """How one kind of head is built and taught; options are fields."""

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
        """A fresh head on the target's device; `counts` [vocab] says how often the target wrote each token."""

    def lesson(self, head: Any, teacher: Teacher, batch: Batch) -> Lesson:
        """Teach one batch."""

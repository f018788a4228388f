"""Training of OWL's drafter: the LSTM follows the text for a few steps, from all positions."""

from dataclasses import dataclass
from typing import ClassVar

from sapwood.core.array_types import IntArray
from sapwood.core.part import at_least, between
from sapwood.heads.owl import OwlConfig, OwlHead
from sapwood.train.batches import TrainBatch
from sapwood.train.head_losses import compare, equalise, share_weights
from sapwood.train.objective import LossResult
from sapwood.train.recurrent import unroll
from sapwood.train.teacher import Teacher


@dataclass(frozen=True)
class OwlObjective:
    """Train OWL's drafter."""

    unroll: int = 6  # tokens that each state follows
    decay: float = 0.85  # weight of each step against the one before
    hard: float = 0.3  # share of the label that is the target's first choice alone
    vocabulary: int = 16_384  # tokens the head can propose
    rate: float = 2e-3
    matrix_rate: float = 8e-3

    kind: ClassVar[str] = "owl"

    def __post_init__(self) -> None:
        at_least(1, unroll=self.unroll, vocabulary=self.vocabulary)
        between(0, 1, hard=self.hard)

    def features(self, teacher: Teacher) -> tuple[int, ...]:
        """None: the drafter reads final states."""
        return ()

    def build(self, teacher: Teacher, counts: IntArray) -> OwlHead:
        """A new drafter that uses the target's output head."""
        config = OwlConfig(
            width=teacher.width,
            vocab=teacher.vocab,
            draft_vocab=min(self.vocabulary, teacher.vocab),
            layer=teacher.layers,
            eps=teacher.shape().eps,
        )
        head = OwlHead(config).to(teacher.device)
        share_weights(head, teacher, counts)
        equalise([head.begin_norm], [teacher.layers], teacher, counts)
        return head

    def loss(self, head: OwlHead, teacher: Teacher, batch: TrainBatch) -> LossResult:
        """Follow the text and compare every step with the target."""
        steps = unroll(head, teacher.embedding, batch, self.unroll)
        return compare(head, steps, teacher, batch, hard=self.hard, decay=self.decay)

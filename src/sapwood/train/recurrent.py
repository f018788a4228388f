"""Training of the recurrent head: the state follows the text for a few steps, from all positions at once.

ReDrafter (arXiv 2403.09919). Row t begins with the target's final state at t and reads the tokens
from t + 1 on; after each it is compared with the target's law of the next token.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor
from torch.nn import functional as F

from sapwood.arrays import IntArray
from sapwood.heads.recurrent import Recurrent, RecurrentConfig
from sapwood.part import at_least, between
from sapwood.train.batches import Batch
from sapwood.train.course import Lesson
from sapwood.train.lessons import compare, lend, level
from sapwood.train.target import Teacher


@dataclass(frozen=True)
class RecurrentCourse:
    """Teach a recurrent head."""

    unroll: int = 6  # tokens that each state follows
    decay: float = 0.85  # weight of each step against the one before
    hard: float = 0.3  # share of the label that is the target's first choice alone
    vocabulary: int = 16_384  # tokens the head can propose
    blocks: int = 1  # residual blocks between the state and the output
    rate: float = 2e-3
    matrix_rate: float = 8e-3

    kind: ClassVar[str] = "recurrent"

    def __post_init__(self) -> None:
        at_least(1, unroll=self.unroll, vocabulary=self.vocabulary, blocks=self.blocks)
        between(0, 1, hard=self.hard)

    def features(self, teacher: Teacher) -> tuple[int, ...]:
        """Nothing but the final states, which every batch has."""
        return ()

    def build(self, teacher: Teacher, counts: IntArray) -> Recurrent:
        """A head that speaks through the target's output head."""
        config = RecurrentConfig(
            width=teacher.width,
            vocab=teacher.vocab,
            draft_vocab=min(self.vocabulary, teacher.vocab),
            layer=teacher.layers,
            blocks=self.blocks,
            eps=teacher.shape().eps,
        )
        head = Recurrent(config).to(teacher.device)
        lend(head, teacher, counts)
        level([head.begin_norm], [teacher.layers], teacher, counts)
        return head

    def lesson(self, head: Recurrent, teacher: Teacher, batch: Batch) -> Lesson:
        """Follow the text and compare every step with the target."""
        steps = unroll(head, teacher.embedding, batch, self.unroll)
        return compare(head, steps, teacher, batch, hard=self.hard, decay=self.decay)


def unroll(head: Recurrent, embedding: Tensor, batch: Batch, steps: int) -> list[Tensor]:
    """The head's outputs [batch, rows, width] after each of these steps."""
    first = head.begin(batch.final.to(head.fuse.weight.dtype))
    states, outputs = first, []
    for step in range(steps):
        tokens = F.pad(batch.tokens[:, 1 + step :], (0, 1 + step))
        states = head.step(states, F.embedding(tokens, embedding).to(states.dtype))
        outputs.append(head.outputs(states, first))
    return outputs

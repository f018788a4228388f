"""Training of the recurrent head: its state follows the text for a few steps, from all positions.

ReDrafter (arXiv 2403.09919). Row t begins with the target's final state at t and reads the tokens
from t + 1 on; after each it is compared with the target's probs of the next token.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor
from torch.nn import functional as F

from sapwood.core.array_types import IntArray
from sapwood.core.part import at_least, between
from sapwood.heads.recurrent import RecurrentConfig, RecurrentHead
from sapwood.train.batches import TrainBatch
from sapwood.train.head_losses import compare, equalise, share_weights
from sapwood.train.objective import LossResult
from sapwood.train.teacher import Teacher


@dataclass(frozen=True)
class RecurrentObjective:
    """Train a recurrent head."""

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
        """None: the head reads final states."""
        return ()

    def build(self, teacher: Teacher, counts: IntArray) -> RecurrentHead:
        """A head that uses the target's output head."""
        config = RecurrentConfig(
            width=teacher.width,
            vocab=teacher.vocab,
            draft_vocab=min(self.vocabulary, teacher.vocab),
            layer=teacher.layers,
            blocks=self.blocks,
            eps=teacher.shape().eps,
        )
        head = RecurrentHead(config).to(teacher.device)
        share_weights(head, teacher, counts)
        equalise([head.begin_norm], [teacher.layers], teacher, counts)
        return head

    def loss(self, head: RecurrentHead, teacher: Teacher, batch: TrainBatch) -> LossResult:
        """Follow the text and compare every step with the target."""
        steps = unroll(head, teacher.embedding, batch, self.unroll)
        return compare(head, steps, teacher, batch, hard=self.hard, decay=self.decay)


def unroll(head: Any, embedding: Tensor, batch: TrainBatch, steps: int) -> list[Tensor]:
    """The head's outputs [batch, rows, width] after each of these steps."""
    first = head.begin(batch.final.to(next(head.parameters()).dtype))
    states = first
    outputs = []
    for step in range(steps):
        tokens = F.pad(batch.tokens[:, 1 + step :], (0, 1 + step))
        states = head.step(states, F.embedding(tokens, embedding).to(states.dtype))
        outputs.append(head.outputs(states, first))
    return outputs

"""Joint training of Medusa's heads and the backbone (Medusa-2, arXiv 2401.10774, section 2.2.2).

The backbone is tuned by a low-rank adapter; its own next token is held to the distribution of the
model it came from (the paper's self-distillation), and the heads read its states. The result is
another model, with heads of its own. The paper's slow beginning of the heads' weight is left out.
"""

from dataclasses import dataclass
from typing import ClassVar

from sapwood.core.array_types import IntArray
from sapwood.core.part import at_least
from sapwood.heads.medusa import MedusaConfig
from sapwood.heads.medusa2 import Medusa2Heads
from sapwood.train.batches import TrainBatch
from sapwood.train.labels import decayed_loss, label
from sapwood.train.objective import LossResult
from sapwood.train.teacher import Teacher
from sapwood.train.tuned_target import TunedTarget
from sapwood.train.vocabulary import commonest


@dataclass(frozen=True)
class Medusa2Objective:
    """Train Medusa's heads and a low-rank adapter of the target together."""

    heads: int = 5  # places to look ahead
    blocks: int = 1  # of each head
    rank: int = 32  # of the adapter
    share: float = 0.2  # weight of the heads' loss against the model's own
    decay: float = 0.8  # weight of each place against the one before
    hard: float = 0.0  # share of the label that is the target's first choice alone
    vocabulary: int = 16_384  # tokens the heads can propose
    rate: float = 2e-3
    matrix_rate: float = 4e-3

    kind: ClassVar[str] = "medusa2"

    def __post_init__(self) -> None:
        at_least(1, heads=self.heads, blocks=self.blocks, rank=self.rank)
        at_least(1, vocabulary=self.vocabulary)

    def features(self, teacher: Teacher) -> tuple[int, ...]:
        """None: the tuned model runs over the tokens itself."""
        return ()

    def build(self, teacher: Teacher, counts: IntArray) -> TunedTarget:
        """The target as it is, and heads that begin with its next-token output."""
        tokens = commonest(counts, self.vocabulary).to(teacher.device)
        config = MedusaConfig(
            teacher.width, teacher.vocab, self.heads, self.blocks, draft_vocab=len(tokens)
        )
        heads = Medusa2Heads(config).to(teacher.device)
        heads.use_vocabulary(tokens)
        heads.attach(teacher.embedding, teacher.head)
        return TunedTarget(teacher, self.rank, heads)

    def loss(self, tuned: TunedTarget, teacher: Teacher, batch: TrainBatch) -> LossResult:
        """The model's own loss, and that of every head over the tuned model's states."""
        heads = tuned.heads
        labels = label(heads, teacher, batch, self.hard)
        states = tuned(batch.tokens)
        rows, weights = labels.rows(-1)  # the model's own next token
        own, _ = labels.loss(states[labels.texts, rows], heads.output, weights)
        dtype = next(heads.parameters()).dtype
        losses = []
        agreement = []
        for step, head in enumerate(heads.heads):
            rows, weights = labels.rows(step)
            chosen = head(states[labels.texts, rows].to(dtype))
            loss, right = labels.loss(chosen, heads.rows(step), weights)
            losses.append(loss)
            agreement.append(right)
        result = decayed_loss(losses, agreement, self.decay)
        return LossResult(own + self.share * result.loss, result.agreement)

"""Training of Clover's heads: their state follows the text (arXiv 2405.00263, section 3)."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor
from torch.nn import functional as F

from sapwood.core.array_types import IntArray
from sapwood.core.part import at_least, between
from sapwood.heads.clover import CloverConfig, CloverHeads
from sapwood.heads.text_layers import scale_outputs_down
from sapwood.train.batches import TrainBatch
from sapwood.train.head_losses import compare_states, share_tables
from sapwood.train.objective import LossResult
from sapwood.train.teacher import Teacher


@dataclass(frozen=True)
class CloverObjective:
    """Train Clover's heads."""

    heads: int = 4  # places to look ahead
    decay: float = 0.8  # weight of each place against the one before
    hard: float = 0.3  # share of the label that is the target's first choice alone
    vocabulary: int = 16_384  # tokens the heads can propose
    inner: int = 512  # width of the block's MLP; 0: the target's
    rate: float = 2e-3
    matrix_rate: float = 8e-3

    kind: ClassVar[str] = "clover"

    def __post_init__(self) -> None:
        at_least(1, heads=self.heads, vocabulary=self.vocabulary)
        between(0, 1, hard=self.hard)

    def features(self, teacher: Teacher) -> tuple[int, ...]:
        """None: the heads read final states."""
        return ()

    def build(self, teacher: Teacher, counts: IntArray) -> CloverHeads:
        """Heads that all begin close to the target's next-token output."""
        config = CloverConfig(
            shape=teacher.shape(self.inner),
            vocab=teacher.vocab,
            draft_vocab=min(self.vocabulary, teacher.vocab),
            heads=self.heads,
        )
        head = CloverHeads(config).to(teacher.device)
        share_tables(head, teacher, counts)
        scale_outputs_down(head.layers)
        return head

    def loss(self, head: CloverHeads, teacher: Teacher, batch: TrainBatch) -> LossResult:
        """Follow the text and compare every head with the target."""
        steps = follow(head, batch)
        return compare_states(head, steps, teacher, batch, hard=self.hard, decay=self.decay)


def follow(head: CloverHeads, batch: TrainBatch) -> list[Tensor]:
    """Outputs [batch, rows, width] of each head, for every position."""
    states = batch.final.to(head.decoder.out.weight.dtype)
    for layer in head.layers:
        states = layer(states)
    outputs = []
    for step in range(head.config.heads):
        tokens = F.pad(batch.tokens[:, 1 + step :], (0, 1 + step))
        states = head.step(states, head.embed(tokens))
        outputs.append(head.outputs(states, step))
    return outputs

"""Training of Amphista's heads: all places of all positions at once (arXiv 2406.13170)."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor
from torch.nn import functional as F

from sapwood.core.array_types import IntArray
from sapwood.core.part import at_least, between
from sapwood.heads.amphista import AmphistaConfig, AmphistaHeads
from sapwood.heads.text_layers import scale_outputs_down
from sapwood.train.batches import TrainBatch
from sapwood.train.head_losses import compare_states, share_tables
from sapwood.train.objective import LossResult
from sapwood.train.teacher import Teacher


@dataclass(frozen=True)
class AmphistaObjective:
    """Train Amphista's heads."""

    heads: int = 4  # places to look ahead
    decay: float = 0.8  # weight of each place against the one before
    hard: float = 0.3  # share of the label that is the target's first choice alone
    vocabulary: int = 16_384  # tokens the heads can propose
    inner: int = 256  # width of the stages' MLPs; 0: the target's
    rate: float = 2e-3
    matrix_rate: float = 8e-3

    kind: ClassVar[str] = "amphista"

    def __post_init__(self) -> None:
        at_least(1, heads=self.heads, vocabulary=self.vocabulary)
        between(0, 1, hard=self.hard)

    def features(self, teacher: Teacher) -> tuple[int, ...]:
        """None: the heads read final states."""
        return ()

    def build(self, teacher: Teacher, counts: IntArray) -> AmphistaHeads:
        """Heads that all begin close to the target's next-token output."""
        config = AmphistaConfig(
            shape=teacher.shape(self.inner),
            vocab=teacher.vocab,
            draft_vocab=min(self.vocabulary, teacher.vocab),
            heads=self.heads,
        )
        head = AmphistaHeads(config).to(teacher.device)
        share_tables(head, teacher, counts)
        scale_outputs_down(head.layers)
        return head

    def loss(self, head: AmphistaHeads, teacher: Teacher, batch: TrainBatch) -> LossResult:
        """Compare every head with the target at the place it predicts."""
        steps = places_of(head, batch)
        return compare_states(head, steps, teacher, batch, hard=self.hard, decay=self.decay)


def places_of(head: AmphistaHeads, batch: TrainBatch) -> list[Tensor]:
    """Outputs [batch, rows, width] of each head, for every position."""
    x = batch.final.to(head.places.dtype)
    embeds = head.embed(F.pad(batch.tokens[:, 1:], (0, 1)))
    stages = []
    for number, layer in enumerate(head.layers):
        x = layer(head.input_rows(number, embeds, x))
        stages.append(x.flatten(0, 1))
    states = head.states(stages)
    return list(states.view(len(states), *batch.final.shape))

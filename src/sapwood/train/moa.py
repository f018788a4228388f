"""Training of a mixture of attentions: every depth of a draft, at every place of a text.

A token that is drafted at depth d sees the memory of the text up to d + 1 places before it, and all
tokens before it (arXiv 2410.03804: the network is trained for as many steps without a new state of
the target as it drafts).
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from sapwood.core.array_types import IntArray
from sapwood.core.part import at_least, between
from sapwood.heads.moa import MoaConfig, MoaHead
from sapwood.train.batches import TrainBatch
from sapwood.train.eagle3 import Eagle3Objective
from sapwood.train.head_losses import equalise, share_weights
from sapwood.train.labels import decayed_loss, label
from sapwood.train.losses import check_divergence
from sapwood.train.objective import LossResult
from sapwood.train.teacher import Teacher


@dataclass(frozen=True)
class MoaObjective:
    """Train a mixture of attentions."""

    depth: int = 6  # tokens drafted without a new state of the target
    decay: float = 0.85  # weight of each depth against the one before
    hard: float = 0.3  # share of the label that is the target's first choice alone
    divergence: str = "fkl"  # from the target's probs: fkl, rkl, jsd or tvd
    vocabulary: int = 16_384  # tokens the head can propose
    inner: int = 768  # width of its MLP; 0: the target's
    rate: float = 2e-3
    matrix_rate: float = 8e-3

    kind: ClassVar[str] = "moa"

    def __post_init__(self) -> None:
        at_least(1, depth=self.depth, vocabulary=self.vocabulary)
        between(0, 1, hard=self.hard)
        check_divergence(self.divergence)

    def features(self, teacher: Teacher) -> tuple[int, ...]:
        """A low, a middle and a high layer, as for EAGLE-3, and the final state."""
        return (*Eagle3Objective().features(teacher), teacher.layers)

    def build(self, teacher: Teacher, counts: IntArray) -> MoaHead:
        """A new head."""
        config = MoaConfig(
            shape=teacher.shape(self.inner),
            vocab=teacher.vocab,
            draft_vocab=min(self.vocabulary, teacher.vocab),
            features=self.features(teacher),
            context=teacher.backend.info.context,
        )
        head = MoaHead(config).to(teacher.device)
        share_weights(head, teacher, counts)
        norms = list(head.remember.get_submodule("norms").children())
        equalise(norms, config.features, teacher, counts)
        return head

    def loss(self, head: MoaHead, teacher: Teacher, batch: TrainBatch) -> LossResult:
        """Compare every depth with the target."""
        labels = label(head, teacher, batch, self.hard, self.divergence)
        losses = []
        agreement = []
        for depth, outputs in enumerate(depths_of(head, batch, self.depth)):
            # the memory of a place's first token is empty up to there
            known = labels.known & (labels.places > depth)
            weights = known / known.sum().clamp(min=1)
            chosen = head.norm(outputs[labels.texts, labels.places])
            loss, right = labels.loss(chosen, head.output, weights)
            losses.append(loss)
            agreement.append(right)
        return decayed_loss(losses, agreement, self.decay)


def depths_of(head: MoaHead, batch: TrainBatch, count: int) -> list[Tensor]:
    """Outputs [batch, rows, width] of every token as if it were drafted at each of these depths."""
    dtype = next(head.parameters()).dtype
    place = torch.arange(batch.tokens.shape[1], device=batch.tokens.device)
    positions = place.expand_as(batch.tokens)
    embeds = head.embed(batch.tokens)
    query, key, value = head.project(embeds, positions)
    states = embeds + head.own.attend(query, key, value, None, causal=True)
    key, value = head.project_memory(batch.features.to(dtype), positions)
    asked = head.ask(states, positions)
    found = []
    for depth in range(count):
        mask = place < place[:, None] - depth
        mask[: depth + 1, 0] = True  # a row that sees nothing would have no sum
        found.append(head.finish(states, head.cross.attend(asked, key, value, mask)))
    return found

"""Training of Falcon's head: coupled sequential glancing distillation (arXiv 2412.12639).

The head predicts the target's state two places ahead and the probs made from it. A first pass
counts its mistakes; for a share of them, rows get the target's state and token of two places ahead
instead of their own, and the loss is that of a second pass over these rows. Every row is trained in
both places of a block, while the paper cuts a text into blocks, where each row has one.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from sapwood.core.array_types import IntArray
from sapwood.core.part import at_least, between
from sapwood.heads.falcon import BLOCK, FalconConfig, FalconHead
from sapwood.train.batches import TrainBatch
from sapwood.train.eagle import distance
from sapwood.train.labels import TargetLabels, decayed_loss, label
from sapwood.train.objective import LossResult
from sapwood.train.teacher import Teacher
from sapwood.train.vocabulary import commonest


@dataclass(frozen=True)
class FalconObjective:
    """Train Falcon's head."""

    glance: float = 0.3  # rows replaced, per mistake; in the published code from 0.45 down to 0.1
    state: float = 1.0  # weight of the distance between states
    word: float = 0.1  # weight of the cross entropy
    hard: float = 0.1  # share of the label that is the target's first choice alone
    vocabulary: int = 16_384  # tokens the head can propose
    inner: int = 0  # width of its MLP; 0: the target's
    rate: float = 2e-3
    matrix_rate: float = 8e-3

    kind: ClassVar[str] = "falcon"

    def __post_init__(self) -> None:
        at_least(1, vocabulary=self.vocabulary)
        between(0, 1, glance=self.glance, hard=self.hard)

    def features(self, teacher: Teacher) -> tuple[int, ...]:
        """None: the head reads final states."""
        return ()

    def build(self, teacher: Teacher, counts: IntArray) -> FalconHead:
        """A new head."""
        tokens = commonest(counts, self.vocabulary).to(teacher.device)
        config = FalconConfig(
            shape=teacher.shape(self.inner),
            target_width=teacher.width,
            vocab=teacher.vocab,
            draft_vocab=len(tokens),
            layer=teacher.layers,
            context=teacher.backend.info.context,
        )
        head = FalconHead(config).to(teacher.device)
        head.use_vocabulary(tokens)
        head.attach(teacher.embedding, teacher.head)
        return head

    def loss(self, head: FalconHead, teacher: Teacher, batch: TrainBatch) -> LossResult:
        """Compare both places of a block with the target, after a glance."""
        labels = label(head, teacher, batch, self.hard)
        goal = batch.final[labels.texts, labels.places]
        rows, weights = labels.rows(BLOCK - 1)
        ahead = torch.zeros_like(batch.tokens, dtype=torch.bool)
        if self.glance:
            with torch.no_grad():
                _, second = places_of(head, batch, ahead)
                _, right = labels.loss(second[labels.texts, rows], head.output, weights)
            ahead = rows_ahead(batch, labels, float(1 - right) * self.glance)
        losses = []
        agreement = []
        for states in places_of(head, batch, ahead):
            chosen = states[labels.texts, rows]
            loss, right = labels.loss(chosen, head.output, weights)
            losses.append(self.word * loss + self.state * (weights * distance(chosen, goal)).sum())
            agreement.append(right)
        return decayed_loss(losses, agreement, 1.0)


def rows_ahead(batch: TrainBatch, labels: TargetLabels, share: float) -> Tensor:
    """True for rows [batch, rows] that see two places ahead: a share of all, of even rows alone.

    Draws are seeded by the batch, so that a resumed run repeats them.
    """
    rows, _ = labels.rows(BLOCK - 1)
    even = rows % BLOCK == 0
    source = torch.Generator(rows.device).manual_seed(int(batch.tokens.sum()))
    order = torch.randperm(int(even.sum()), generator=source, device=rows.device)
    chosen = order[: int(share * len(rows))]
    found = torch.zeros_like(batch.tokens, dtype=torch.bool)
    found[labels.texts[even][chosen], rows[even][chosen]] = True
    return found


def places_of(head: FalconHead, batch: TrainBatch, ahead: Tensor) -> tuple[Tensor, Tensor]:
    """Predicted states [batch, rows, width] of every row as the first of a block and the second."""
    dtype = next(head.parameters()).dtype
    count = batch.tokens.shape[1]
    states, tokens = batch.final.to(dtype), F.pad(batch.tokens[:, 1:], (0, 1))
    later = F.pad(states[:, BLOCK:], (0, 0, 0, BLOCK)), F.pad(tokens[:, BLOCK:], (0, BLOCK))
    states = torch.where(ahead[..., None], later[0], states)
    tokens = torch.where(ahead, later[1], tokens)
    rows, _ = head.input_rows(head.embed(tokens), states)
    place = torch.arange(count, device=tokens.device)
    query, key, value = head.project(rows, place.expand_as(tokens))
    found = []
    for seen in (BLOCK - 1, 0):  # rows behind its own that a row sees
        mask = place <= place[:, None] + seen
        found.append(head.finish(rows, head.self_attn.attend(query, key, value, mask)))
    return found[0], found[1]

"""The target's probs at each place of an answer, as labels of heads that predict several places."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from sapwood.train.batches import TrainBatch
from sapwood.train.eagle3 import sharpen
from sapwood.train.losses import soft_cross
from sapwood.train.objective import LossResult
from sapwood.train.teacher import Teacher


@runtime_checkable
class VocabHead(Protocol):
    """A head that proposes tokens of a draft vocabulary."""

    @property
    def vocabulary(self) -> Tensor:
        """Target id of each draft token, [draft vocab]."""

    @property
    def t2d(self) -> Tensor:
        """True for tokens of the target that can be proposed, [vocab]."""


@dataclass(frozen=True, slots=True)
class TargetLabels:
    """The places of a batch that count, with the target's probs at each."""

    texts: Tensor  # [places]
    places: Tensor  # [places] position of the state that predicts the token
    target_probs: Tensor  # [places, draft vocab]
    best: Tensor  # [places] the target's own first choice, as a draft token
    known: Tensor  # [places] True if the token that follows is in the draft vocabulary
    divergence: str = "fkl"  # one of losses.DIVERGENCES

    def rows(self, step: int) -> tuple[Tensor, Tensor]:
        """Row and weight of each place, predicted `step` steps ahead of the next; both [places]."""
        rows = self.places - 1 - step
        counted = self.known & (rows >= 0)
        return rows.clamp(min=0), counted / counted.sum().clamp(min=1)

    def loss(self, states: Tensor, output: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Loss and agreement of states [places, width] under output rows [draft vocab, width]."""
        return soft_cross(states, output, self.target_probs, weights, self.best, self.divergence)


def label(
    head: VocabHead, teacher: Teacher, batch: TrainBatch, hard: float, divergence: str = "fkl"
) -> TargetLabels:
    """Labels of a batch; `hard` is the share of the probs that goes to their first choice alone."""
    texts, places = batch.labelled_places()
    target_probs = teacher.target_probs(batch.final[texts, places], head.vocabulary)
    best = target_probs.argmax(-1)
    known = head.t2d[batch.tokens[texts, places + 1]]
    probs = sharpen(target_probs, best, hard)
    return TargetLabels(texts, places, probs, best, known, divergence)


def decayed_loss(losses: Sequence[Tensor], agreement: Sequence[Tensor], decay: float) -> LossResult:
    """Loss of several steps, each weighing `decay` times the one before."""
    weights = [decay**step for step in range(len(losses))]
    total = torch.stack([loss * weight for loss, weight in zip(losses, weights, strict=True)]).sum()
    return LossResult(total / sum(weights), torch.stack(list(agreement)))

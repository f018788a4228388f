"""What the target says at each place of an answer, as the label of heads that look several places ahead."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from sapwood.train.batches import Batch
from sapwood.train.course import Lesson
from sapwood.train.eagle3 import harden
from sapwood.train.losses import soft_cross
from sapwood.train.target import Teacher


class Speaker(Protocol):
    """A head that proposes tokens of a draft vocabulary."""

    @property
    def vocabulary(self) -> Tensor:
        """Target id of each draft token, [draft vocab]."""

    @property
    def t2d(self) -> Tensor:
        """Which tokens of the target can be proposed, [vocab]."""


@dataclass(frozen=True, slots=True)
class Labels:
    """The judged places of a batch, with the target's law at each."""

    texts: Tensor  # [places]
    places: Tensor  # [places] position of the state that says the word
    laws: Tensor  # [places, draft vocab]
    best: Tensor  # [places] the target's own first choice, as a draft token
    known: Tensor  # [places] where the word that follows can be proposed at all

    def rows(self, step: int) -> tuple[Tensor, Tensor]:
        """The row that predicts each place `step` steps further than the next one, and its weight; both [places]."""
        rows = self.places - 1 - step
        counted = self.known & (rows >= 0)
        return rows.clamp(min=0), counted / counted.sum().clamp(min=1)

    def judge(self, states: Tensor, output: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Loss and agreement of what output rows [draft vocab, width] make of states [places, width]."""
        return soft_cross(states, output, self.laws, weights, self.best)


def label(head: Speaker, teacher: Teacher, batch: Batch, hard: float) -> Labels:
    """Labels of a batch; `hard` is the share of a law that goes to its first choice alone."""
    texts, places = batch.judged()
    laws = teacher.laws(batch.final[texts, places], head.vocabulary)
    best = laws.argmax(-1)
    known = head.t2d[batch.tokens[texts, places + 1]]
    return Labels(texts, places, harden(laws, best, hard), best, known)


def weigh(losses: Sequence[Tensor], agreement: Sequence[Tensor], decay: float) -> Lesson:
    """One lesson of several steps, each weighing `decay` times the one before."""
    weights = [decay**step for step in range(len(losses))]
    total = torch.stack([loss * weight for loss, weight in zip(losses, weights, strict=True)]).sum()
    return Lesson(total / sum(weights), torch.stack(list(agreement)))

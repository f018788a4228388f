"""Initial weights and loss of heads with a norm of their own before the target's output head."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from sapwood.core.array_types import IntArray
from sapwood.train.batches import TrainBatch
from sapwood.train.labels import decayed_loss, label
from sapwood.train.objective import LossResult
from sapwood.train.teacher import Teacher
from sapwood.train.vocabulary import commonest

MODEST = 0.5  # of the target's own confidence: a new head is mostly wrong
# size of the random text by which channels are compared; the first token of a line is not counted
LINES = 8
WORDS = 64


def share_tables(head: Any, teacher: Teacher, counts: IntArray) -> None:
    """Give a new head its vocabulary and the target's embedding and output head."""
    head.use_vocabulary(commonest(counts, len(head.d2t)).to(teacher.device))
    head.attach(teacher.embedding, teacher.head)


def share_weights(head: Any, teacher: Teacher, counts: IntArray) -> None:
    """Give a new head its vocabulary, the target's embedding and output head, and a scaled norm."""
    share_tables(head, teacher, counts)
    if teacher.norm is not None:
        with torch.no_grad():
            head.norm.weight.copy_(teacher.norm * MODEST)


@torch.no_grad()
def equalise(
    norms: Sequence[Any], layers: Sequence[int], teacher: Teacher, counts: IntArray
) -> None:
    """Initialise norms so that all channels of these layers' inputs have the same scale.

    In most models a few channels are a hundred times larger than the rest, whatever the text:
    random tokens show which.
    """
    chances = torch.from_numpy(counts + 1).double()
    tokens = torch.multinomial(
        chances, LINES * WORDS, replacement=True, generator=torch.Generator().manual_seed(0)
    )
    features, _ = teacher.read(tokens.view(LINES, WORDS).to(teacher.device), layers)
    for norm, states in zip(norms, features[:, 1:].float().chunk(len(layers), -1), strict=True):
        alike = states / states.pow(2).mean(-1, keepdim=True).sqrt()
        norm.weight.copy_(1 / alike.pow(2).mean((0, 1)).sqrt().clamp(min=1e-3))


def compare(
    head: Any,
    steps: Sequence[Tensor],  # outputs of each step, [batch, rows, width]
    teacher: Teacher,
    batch: TrainBatch,
    *,
    hard: float,  # share of the label that is the target's first choice alone
    decay: float = 1.0,  # weight of each step against the one before
    # number of the first step: row t of step s predicts the target's state at place t + 1 + s
    first: int = 0,
) -> LossResult:
    """Loss of every step against the target's probs, for outputs that are normed by the head."""
    options = {"hard": hard, "decay": decay, "first": first, "norm": head.norm}
    return compare_states(head, steps, teacher, batch, **options)


def compare_states(
    head: Any,
    steps: Sequence[Tensor],  # states of each step, [batch, rows, width]
    teacher: Teacher,
    batch: TrainBatch,
    *,
    hard: float,  # share of the label that is the target's first choice alone
    decay: float = 1.0,  # weight of each step against the one before
    first: int = 0,  # number of the first step
    norm: Callable[[Tensor], Tensor] = lambda states: states,  # of the chosen rows
) -> LossResult:
    """Loss of every step against the target's probs over the draft vocabulary."""
    labels = label(head, teacher, batch, hard)
    losses = []
    agreement = []
    for step, states in enumerate(steps, first):
        rows, weights = labels.rows(step)
        loss, right = labels.loss(norm(states[labels.texts, rows]), head.output, weights)
        losses.append(loss)
        agreement.append(right)
    return decayed_loss(losses, agreement, decay)

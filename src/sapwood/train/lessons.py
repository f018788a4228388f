"""What the courses share of heads that put a norm of their own before the target's output rows."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from sapwood.arrays import IntArray
from sapwood.train.batches import Batch
from sapwood.train.course import Lesson
from sapwood.train.labels import label, weigh
from sapwood.train.target import Teacher
from sapwood.train.vocabulary import commonest

MODEST = 0.5  # of the target's own confidence: a fresh head is mostly wrong
LINES, WORDS = 8, 64  # of the text by which numbers are compared; the first token of a line is like no other


def lend(head: Any, teacher: Teacher, counts: IntArray) -> None:
    """Give a fresh head its vocabulary, the target's tables, and the norm that the output rows are used to."""
    head.use_vocabulary(commonest(counts, len(head.d2t)).to(teacher.device))
    head.attach(teacher.embedding, teacher.head)
    if teacher.norm is not None:
        with torch.no_grad():
            head.norm.weight.copy_(teacher.norm * MODEST)


@torch.no_grad()
def level(norms: Sequence[Any], layers: Sequence[int], teacher: Teacher, counts: IntArray) -> None:
    """Let norms begin with weights that make all numbers of these layers' inputs alike in size.

    A few of them are a hundred times larger than the rest in most models, whatever the text: the
    target's words in any order show which.
    """
    chances = torch.from_numpy(counts + 1).double()
    words = torch.multinomial(chances, LINES * WORDS, replacement=True, generator=torch.Generator().manual_seed(0))
    features, _ = teacher.read(words.view(LINES, WORDS).to(teacher.device), layers)
    for norm, states in zip(norms, features[:, 1:].float().chunk(len(layers), -1), strict=True):
        alike = states / states.pow(2).mean(-1, keepdim=True).sqrt()
        norm.weight.copy_(1 / alike.pow(2).mean((0, 1)).sqrt().clamp(min=1e-3))


def compare(
    head: Any,
    steps: Sequence[Tensor],  # outputs of each step, [batch, rows, width]
    teacher: Teacher,
    batch: Batch,
    *,
    hard: float,  # share of the label that is the target's first choice alone
    decay: float = 1.0,  # weight of each step against the one before
    first: int = 0,  # the first step: row t of step s speaks for the target's state at place t + 1 + s
) -> Lesson:
    """Hold every step against the target's laws over the draft vocabulary."""
    labels = label(head, teacher, batch, hard)
    losses, agreement = [], []
    for step, states in enumerate(steps, first):
        rows, weights = labels.rows(step)
        loss, right = labels.judge(head.norm(states[labels.texts, rows]), head.output, weights)
        losses.append(loss)
        agreement.append(right)
    return weigh(losses, agreement, decay)

"""Consistency training for Jacobi decoding (CLLM, arXiv 2403.00835): the target becomes another.

The target's own Jacobi iteration from random tokens yields guesses of a block and, in the end, its
fixed point: the target's greedy text. The tuned model is to predict the fixed point from any guess
(consistency) and to stay the model that it was on the fixed point itself.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from sapwood.core.array_types import IntArray
from sapwood.core.part import at_least, between
from sapwood.train.batches import TrainBatch
from sapwood.train.objective import LossResult
from sapwood.train.teacher import Teacher
from sapwood.train.tuned_target import TunedTarget


@dataclass(frozen=True)
class CllmObjective:
    """Tune the target, by a low-rank adapter, to reach its fixed point in few iterations."""

    block: int = 16  # tokens that are iterated together
    rank: int = 32  # of the adapter
    own: float = 10.0  # weight of the model's own loss on the fixed point
    rate: float = 2e-3
    matrix_rate: float = 4e-3

    kind: ClassVar[str] = "cllm"

    def __post_init__(self) -> None:
        at_least(1, block=self.block, rank=self.rank)
        between(0, 1000, own=self.own)

    def features(self, teacher: Teacher) -> tuple[int, ...]:
        """None: the tuned model runs over the tokens itself."""
        return ()

    def build(self, teacher: Teacher, counts: IntArray) -> TunedTarget:
        """The target as it is."""
        return TunedTarget(teacher, self.rank)

    def loss(self, tuned: TunedTarget, teacher: Teacher, batch: TrainBatch) -> LossResult:
        """Distance of predictions on a guess from those on the fixed point, and its own loss."""
        prompt, guess, fixed = trajectory(teacher, batch, self.block)
        places = slice(prompt.shape[1] - 1, -1)
        far, near = (
            (tuned(torch.cat((prompt, block), 1))[:, places] @ teacher.head.t()).float()
            for block in (guess, fixed)
        )
        goal = near.detach().softmax(-1)
        consistency = -(goal * far.log_softmax(-1)).sum(-1).mean()
        own = F.cross_entropy(near.flatten(0, 1), fixed.flatten())
        right = (far.argmax(-1) == fixed).float().mean()
        return LossResult(consistency + self.own * own, right[None])


@torch.no_grad()
def trajectory(teacher: Teacher, batch: TrainBatch, block: int) -> tuple[Tensor, Tensor, Tensor]:
    """A prompt [batch, rows], a guess on the way [batch, block], and the fixed point it leads to.

    Where a block begins, with which tokens and which guess is taken are drawn from the batch alone,
    so that a resumed run repeats them.
    """
    source = torch.Generator().manual_seed(int(batch.tokens.sum()))
    last = max(2, int(batch.lengths.min()))
    first = min(max(1, int(batch.answers.min())), last - 1)
    start = int(torch.randint(first, last, (1,), generator=source))
    prompt = batch.tokens[:, :start]
    picks = torch.randint(0, start, (len(prompt), block), generator=source).to(prompt.device)
    guess = prompt.gather(1, picks)
    wanted = int(torch.randint(0, block, (1,), generator=source))
    taken = guess
    for step in range(block):  # after so many iterations every guess has arrived
        if step == wanted:
            taken = guess
        _, final = teacher.read(torch.cat((prompt, guess), 1), ())
        better = (final[:, start - 1 : -1] @ teacher.head.t()).argmax(-1)
        if torch.equal(better, guess):
            break
        guess = better
    return prompt, taken, guess

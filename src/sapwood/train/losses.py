"""Cross entropy against a soft law over a large vocabulary, without keeping its logits.

Logits of 30,000 rows over 16,000 tokens take two gigabytes, seven times over when a head is
unrolled. Here a piece of them is made, turned into its own gradient at once, and dropped.
"""

from functools import cache
from typing import Any

import torch
from torch import Tensor

PIECE = 1 << 26  # logits in memory at a time


def compare(logits: Tensor, law: Tensor, weight: Tensor, best: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of a piece of logits [rows, vocab]: the loss, the weight of agreeing rows, and the loss' slope."""
    wide = logits.to(weight.dtype)
    norm = wide.logsumexp(-1)
    loss = (weight * (norm - (wide * law).sum(-1, dtype=wide.dtype))).sum()
    right = (weight * (wide.argmax(-1) == best)).sum()
    slope = ((wide - norm[:, None]).exp() - law) * weight[:, None]
    return loss, right, slope.to(logits.dtype)


@cache
def compiled() -> Any:
    """The comparison in few kernels: on a GPU its time is all memory traffic."""
    return torch.compile(compare, dynamic=True)


def measure(logits: Tensor, law: Tensor, weight: Tensor, best: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Compare, compiled where that pays."""
    found: tuple[Tensor, Tensor, Tensor] = (compiled() if logits.is_cuda else compare)(logits, law, weight, best)
    return found


class SoftCross(torch.autograd.Function):
    """Weighted sum of the cross entropies of softmax(states @ head.T) against given laws."""

    @staticmethod
    def forward(
        ctx: Any,
        states: Tensor,  # [rows, width], what the head reads
        head: Tensor,  # [vocab, width]
        laws: Tensor,  # [rows, vocab], each row sums to one
        weights: Tensor,  # [rows]
        best: Tensor,  # [rows] the target's own first choice
    ) -> tuple[Tensor, Tensor]:
        """The loss, and the sum of weights of rows whose best token is the target's."""
        compute = (
            torch.get_autocast_dtype(states.device.type) if torch.is_autocast_enabled(states.device.type) else None
        )
        narrow = head.to(compute) if compute else head
        wide = torch.promote_types(narrow.dtype, torch.float32)
        rows = max(1, PIECE // len(head))
        dstates = torch.empty_like(states)
        dhead = torch.zeros_like(head) if ctx.needs_input_grad[1] else None  # a borrowed head is not taught
        loss = torch.zeros((), dtype=wide, device=states.device)
        right = torch.zeros_like(loss)
        for start in range(0, len(states), rows):
            part = slice(start, start + rows)
            state, law, weight = states[part].to(narrow.dtype), laws[part], weights[part].to(wide)
            lost, hit, slope = measure(state @ narrow.t(), law, weight, best[part])
            loss += lost
            right += hit
            dstates[part] = (slope @ narrow).to(states.dtype)
            if dhead is not None:
                dhead += (slope.t() @ state).to(head.dtype)
        ctx.save_for_backward(dstates, dhead)
        ctx.mark_non_differentiable(right)
        return loss, right

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients made on the way, scaled."""
        dstates, dhead = ctx.saved_tensors
        taught = None if dhead is None else dhead * grad.to(dhead.dtype)
        return dstates * grad.to(dstates.dtype), taught, None, None, None


def soft_cross(states: Tensor, head: Tensor, laws: Tensor, weights: Tensor, best: Tensor) -> tuple[Tensor, Tensor]:
    """Loss and agreement of a head's states against the target's laws; see `SoftCross`."""
    loss, right = SoftCross.apply(states, head, laws, weights, best)  # type: ignore[no-untyped-call]
    return loss, right

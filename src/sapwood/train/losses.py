"""Cross entropy against soft labels over a large vocabulary, without keeping its logits.

Logits of 30,000 rows over 16,000 tokens take two gigabytes, seven times over when a head is
unrolled. Here a piece of them is computed, turned into its gradient at once, and dropped.
"""

from functools import cache
from typing import Any

import torch
from torch import Tensor

PIECE = 1 << 26  # logits in memory at a time


def compare(
    logits: Tensor, probs: Tensor, weight: Tensor, best: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Of logits [rows, vocab]: the loss, the weight of agreeing rows, and the loss' gradient."""
    wide = logits.to(weight.dtype)
    norm = wide.logsumexp(-1)
    loss = (weight * (norm - (wide * probs).sum(-1, dtype=wide.dtype))).sum()
    right = (weight * (wide.argmax(-1) == best)).sum()
    slope = ((wide - norm[:, None]).exp() - probs) * weight[:, None]
    return loss, right, slope.to(logits.dtype)


@cache
def compiled() -> Any:
    """`compare`, compiled into few kernels: on a GPU its time is all memory traffic."""
    return torch.compile(compare, dynamic=True)


def measure(
    logits: Tensor, probs: Tensor, weight: Tensor, best: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """`compare`, compiled on a GPU."""
    found: tuple[Tensor, Tensor, Tensor] = (compiled() if logits.is_cuda else compare)(
        logits, probs, weight, best
    )
    return found


class SoftCross(torch.autograd.Function):
    """Weighted sum of the cross entropies of softmax(states @ head.T) against given probs."""

    @staticmethod
    def forward(
        ctx: Any,
        states: Tensor,  # [rows, width], input of the output head
        head: Tensor,  # [vocab, width]
        target_probs: Tensor,  # [rows, vocab], each row sums to one
        weights: Tensor,  # [rows]
        best: Tensor,  # [rows] the target's own first choice
    ) -> tuple[Tensor, Tensor]:
        """The loss, and the sum of weights of rows whose best token is the target's."""
        compute = (
            torch.get_autocast_dtype(states.device.type)
            if torch.is_autocast_enabled(states.device.type)
            else None
        )
        narrow = head.to(compute) if compute else head
        wide = torch.promote_types(narrow.dtype, torch.float32)
        rows = max(1, PIECE // len(head))
        dstates = torch.empty_like(states)
        # a tied output head is not trained
        dhead = torch.zeros_like(head) if ctx.needs_input_grad[1] else None
        loss = torch.zeros((), dtype=wide, device=states.device)
        right = torch.zeros_like(loss)
        for start in range(0, len(states), rows):
            part = slice(start, start + rows)
            state = states[part].to(narrow.dtype)
            probs = target_probs[part]
            weight = weights[part].to(wide)
            lost, hit, slope = measure(state @ narrow.t(), probs, weight, best[part])
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
        """The gradients of the forward pass, scaled."""
        dstates, dhead = ctx.saved_tensors
        scaled = None if dhead is None else dhead * grad.to(dhead.dtype)
        return dstates * grad.to(dstates.dtype), scaled, None, None, None


def soft_cross(
    states: Tensor, head: Tensor, target_probs: Tensor, weights: Tensor, best: Tensor
) -> tuple[Tensor, Tensor]:
    """Loss and agreement of a head's states against the target's probs; see `SoftCross`."""
    loss, right = SoftCross.apply(states, head, target_probs, weights, best)  # type: ignore[no-untyped-call]
    return loss, right

"""Divergences from soft labels over a large vocabulary, without keeping their logits.

Logits of 30,000 rows over 16,000 tokens take two gigabytes, seven times over when a head is
unrolled. Here a piece of them is computed, turned into its gradient at once, and dropped.
"""

from functools import cache
from typing import Any

import torch
from torch import Tensor

from sapwood.errors import SapwoodError

PIECE = 1 << 26  # logits in memory at a time
# of the head's q from the target's p: cross entropy, which is KL(p || q) but for a constant;
# KL(q || p); the Jensen-Shannon divergence; half the sum of |p - q|
DIVERGENCES = ("fkl", "rkl", "jsd", "tvd")
LEAST = 1e-30  # a probability of the target below it counts as this one under a logarithm


def compare(
    logits: Tensor, probs: Tensor, weight: Tensor, best: Tensor, divergence: str = "fkl"
) -> tuple[Tensor, Tensor, Tensor]:
    """The loss of logits [rows, vocab], the weight of agreeing rows, and the loss' gradient."""
    wide = logits.to(weight.dtype)
    norm = wide.logsumexp(-1)
    right = (weight * (wide.argmax(-1) == best)).sum()
    if divergence == "fkl":
        loss = (weight * (norm - (wide * probs).sum(-1, dtype=wide.dtype))).sum()
        slope = ((wide - norm[:, None]).exp() - probs) * weight[:, None]
        return loss, right, slope.to(logits.dtype)
    logq = wide - norm[:, None]
    lost, pull = diverged(logq, probs.to(wide.dtype), divergence)
    q = logq.exp()
    # by the chain rule through q = softmax(logits): q (pull - mean of pull under q)
    slope = q * (pull - (q * pull).sum(-1, keepdim=True)) * weight[:, None]
    return (weight * lost).sum(), right, slope.to(logits.dtype)


def diverged(logq: Tensor, p: Tensor, divergence: str) -> tuple[Tensor, Tensor]:
    """Divergence of each row [rows], and its derivative by q up to a constant [rows, vocab]."""
    q = logq.exp()
    if divergence == "rkl":
        pull = logq - p.clamp(min=LEAST).log()
        return (q * pull).sum(-1), pull
    if divergence == "jsd":
        middle = ((p + q) / 2).clamp(min=LEAST).log()
        pull = (logq - middle) / 2
        ours = p * (p.clamp(min=LEAST).log() - middle) / 2
        return (q * pull + ours).sum(-1), pull
    assert divergence == "tvd"
    return (p - q).abs().sum(-1) / 2, (q - p).sign() / 2


@cache
def compiled() -> Any:
    """`compare`, compiled into few kernels: on a GPU it is bound by memory traffic."""
    return torch.compile(compare, dynamic=True)


def measure(
    logits: Tensor, probs: Tensor, weight: Tensor, best: Tensor, divergence: str = "fkl"
) -> tuple[Tensor, Tensor, Tensor]:
    """`compare`, compiled on a GPU."""
    found: tuple[Tensor, Tensor, Tensor] = (compiled() if logits.is_cuda else compare)(
        logits, probs, weight, best, divergence
    )
    return found


class SoftCross(torch.autograd.Function):
    """Weighted sum of divergences of softmax(states @ head.T) from given probs."""

    @staticmethod
    def forward(
        ctx: Any,
        states: Tensor,  # [rows, width], input of the output head
        head: Tensor,  # [vocab, width]
        target_probs: Tensor,  # [rows, vocab], each row sums to one
        weights: Tensor,  # [rows]
        best: Tensor,  # [rows] the target's own first choice
        divergence: str = "fkl",
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
            lost, hit, slope = measure(state @ narrow.t(), probs, weight, best[part], divergence)
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
        return dstates * grad.to(dstates.dtype), scaled, None, None, None, None


def soft_cross(
    states: Tensor,
    head: Tensor,
    target_probs: Tensor,
    weights: Tensor,
    best: Tensor,
    divergence: str = "fkl",
) -> tuple[Tensor, Tensor]:
    """Loss and agreement of a head's states against the target's probs; see `SoftCross`."""
    loss, right = SoftCross.apply(states, head, target_probs, weights, best, divergence)  # type: ignore[no-untyped-call]
    return loss, right


def check_divergence(name: str) -> None:
    """Raise if there is no divergence of this name."""
    if name not in DIVERGENCES:
        raise SapwoodError(f"{name!r} is no divergence; take one of {', '.join(DIVERGENCES)}")

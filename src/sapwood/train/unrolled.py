"""Attention of a head that is trained on its own outputs, all positions at once.

At unrolled step s the row of position t sees the keys that step 0 made for the positions up to t,
and its own keys of the steps 1 to s: a causal block and s diagonals under one softmax (EAGLE-3,
arXiv 2503.01840, figure 6). The causal block goes through the fused kernel; the diagonals are
products of rows. Both share one normaliser, so the kernel's own backward pass, given the joint
output and normaliser, yields the exact gradient of its part.
"""

import math
from typing import Any

import torch
from torch import Tensor

# (keys, values) of each step so far, each [batch, heads, rows, d]
Keys = list[tuple[Tensor, Tensor]]


def attend(query: Tensor, steps: Keys) -> Tensor:
    """Attention output of the newest step's rows [batch, heads, rows, d]; keys may be grouped."""
    group = query.shape[1] // steps[0][0].shape[1]
    if group > 1:
        steps = [
            (key.repeat_interleave(group, 1), value.repeat_interleave(group, 1))
            for key, value in steps
        ]
    if not fused(query):
        return dense(query, steps)
    flat = [tensor for pair in steps for tensor in pair]
    read: Tensor = UnrolledAttention.apply(query, *flat)  # type: ignore[no-untyped-call]
    return read


def fused(query: Tensor) -> bool:
    """True if the fused kernel supports this device, dtype and width."""
    if query.device.type == "cpu":
        return query.dtype in (torch.float32, torch.float64)
    return (
        query.is_cuda
        and query.dtype in (torch.float16, torch.bfloat16)
        and query.shape[-1] % 8 == 0
    )


def dense(query: Tensor, steps: Keys) -> Tensor:
    """The same by one explicit softmax: the definition, and the fallback without a kernel."""
    rows = query.shape[2]
    scale = 1 / math.sqrt(query.shape[-1])
    causal = torch.ones(rows, rows, dtype=torch.bool, device=query.device).tril()
    (key, value), later = steps[0], steps[1:]
    products = ((query @ key.transpose(-1, -2)) * scale).masked_fill(~causal, -math.inf)
    own = [((query * key).sum(-1, keepdim=True)) * scale for key, _ in later]
    joined = torch.cat([products, *own], -1)
    weights = joined.softmax(-1, dtype=torch.promote_types(joined.dtype, torch.float32)).to(
        value.dtype
    )
    read = weights[..., :rows] @ value
    for index, (_, value) in enumerate(later):
        read = read + weights[..., rows + index, None] * value
    return read


class UnrolledAttention(torch.autograd.Function):
    """A causal block by the fused kernel and diagonals by hand, under one softmax."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, *flat: Tensor) -> Tensor:
        """Join the kernel's output with the diagonals by their normalisers."""
        scale = 1 / math.sqrt(query.shape[-1])
        block, norm, extra = kernel(query, flat[0], flat[1])
        # each [batch, heads, rows]
        own = [(query * key).sum(-1, dtype=norm.dtype) * scale for key in flat[2::2]]
        joint = torch.logsumexp(torch.stack([norm, *own]), 0)
        read = (norm - joint).exp().to(block.dtype)[..., None] * block
        for product, value in zip(own, flat[3::2], strict=True):
            read = read + (product - joint).exp().to(value.dtype)[..., None] * value
        ctx.save_for_backward(query, read, joint, *own, *flat)
        ctx.extra = extra
        return read

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        """Each part's gradient of the joint softmax."""
        query, read, joint, *rest = ctx.saved_tensors
        flat = rest[(len(rest) - 2) // 3 :]
        own = rest[: (len(rest) - 2) // 3]
        scale = 1 / math.sqrt(query.shape[-1])
        grad = grad.contiguous()
        dquery, dkey, dvalue = kernel_backward(
            grad, query, flat[0], flat[1], read, joint, ctx.extra
        )
        grads = [dkey, dvalue]
        mean = (grad * read).sum(-1, dtype=joint.dtype)
        for product, key, value in zip(own, flat[2::2], flat[3::2], strict=True):
            weight = (product - joint).exp()
            slope = (weight * ((grad * value).sum(-1, dtype=joint.dtype) - mean) * scale).to(
                grad.dtype
            )[..., None]
            dquery = dquery + slope * key
            grads += [slope * query, weight.to(grad.dtype)[..., None] * grad]
        return (dquery, *grads)


def kernel(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, tuple[Any, ...]]:
    """Causal attention, its normaliser [batch, heads, rows], and inputs of its backward pass."""
    if query.device.type == "cpu":
        read, norm = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            query, key, value, 0.0, True
        )
        return read, norm.transpose(1, 2) if norm.shape[1] != query.shape[1] else norm, ()
    made = torch.ops.aten._scaled_dot_product_flash_attention(query, key, value, 0.0, True)
    return made[0], made[1], tuple(made[2:8])


def kernel_backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    read: Tensor,
    norm: Tensor,
    extra: tuple[Any, ...],
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of query, key and value under a softmax with this normaliser and this result."""
    if query.device.type == "cpu":
        norm = norm.transpose(1, 2).contiguous().transpose(1, 2)
        made = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
            grad, query, key, value, read, norm, 0.0, True
        )
        return made[0], made[1], made[2]
    made = torch.ops.aten._scaled_dot_product_flash_attention_backward(
        grad, query, key, value, read, norm, *extra[:4], 0.0, True, *extra[4:]
    )
    return made[0], made[1], made[2]

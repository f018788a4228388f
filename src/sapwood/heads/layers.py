"""Layers that all heads share: a Llama-like decoder layer whose KV cache is the caller's."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

FEW = 8  # rows up to which a CPU is faster with states as columns


@dataclass(frozen=True, slots=True)
class LayerShape:
    """Sizes of a decoder layer."""

    width: int  # of the residual stream
    heads: int
    kv_heads: int
    head_width: int
    inner: int  # of the gated MLP
    eps: float = 1e-5
    theta: float = 10_000.0  # base of the rotary angles


class RMSNorm(nn.RMSNorm):
    """RMSNorm with its weight in the input's dtype, which the fused kernel needs."""

    def forward(self, x: Tensor) -> Tensor:
        """The rows of x at unit scale, weighted."""
        return F.rms_norm(x, self.normalized_shape, self.weight.to(x.dtype), self.eps)


def linear(inputs: int, outputs: int) -> nn.Linear:
    """A projection without bias, as Llama's are."""
    return nn.Linear(inputs, outputs, bias=False)


def output_logits(states: Tensor, rows: Tensor) -> Tensor:
    """Logits [..., vocab] of states [..., width] by an output head's rows [vocab, width]."""
    count = states.numel() // states.shape[-1]
    # measured: a product with few columns takes half the time of one with few rows
    if states.is_cpu and 1 < count <= FEW:
        columns = states.reshape(count, -1).t()
        return (rows @ columns).t().contiguous().view(*states.shape[:-1], len(rows))
    return F.linear(states, rows)


def head_logits(head: nn.Module, states: Tensor) -> Tensor:
    """Logits of states by an output head, plain or quantised."""
    if isinstance(head, nn.Linear):
        return output_logits(states, head.weight)
    logits: Tensor = head(states)
    return logits


def rotate(x: Tensor, positions: Tensor, theta: float) -> Tensor:
    """Rotary position embedding of x [..., heads, rows, width] at positions [..., rows]."""
    half = x.shape[-1] // 2
    rates = theta ** (torch.arange(half, device=x.device, dtype=torch.float32) / -half)
    angles = positions[..., None, :, None].float() * rates  # [..., 1, rows, half]
    cos = angles.cos().to(x.dtype)
    sin = angles.sin().to(x.dtype)
    left, right = x[..., :half], x[..., half:]
    return torch.cat((left * cos - right * sin, right * cos + left * sin), -1)


class Attention(nn.Module):
    """Grouped-query attention whose input may be wider than its output."""

    def __init__(self, shape: LayerShape, inputs: int) -> None:
        super().__init__()
        self.shape = shape
        self.q_proj = linear(inputs, shape.heads * shape.head_width)
        self.k_proj = linear(inputs, shape.kv_heads * shape.head_width)
        self.v_proj = linear(inputs, shape.kv_heads * shape.head_width)
        self.o_proj = linear(shape.heads * shape.head_width, shape.width)

    def project(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values [batch, heads, rows, d] of x [batch, rows, inputs]."""
        batch, rows, _ = x.shape

        def split(y: Tensor, heads: int) -> Tensor:
            return y.view(batch, rows, heads, self.shape.head_width).transpose(1, 2)

        query = rotate(split(self.q_proj(x), self.shape.heads), positions, self.shape.theta)
        key = rotate(split(self.k_proj(x), self.shape.kv_heads), positions, self.shape.theta)
        return query, key, split(self.v_proj(x), self.shape.kv_heads)

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool = False
    ) -> Tensor:
        """Output [batch, rows, width] over keys [batch, kv heads, keys, d], mask [rows, keys]."""
        group = self.shape.heads // self.shape.kv_heads
        if query.is_cuda and group > 1:  # fused CUDA kernels with a mask do not support groups
            key = key.repeat_interleave(group, 1)
            value = value.repeat_interleave(group, 1)
            group = 1
        read = F.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, is_causal=causal, enable_gqa=group > 1
        )
        out: Tensor = self.o_proj(read.transpose(1, 2).flatten(2))
        return out


class GatedMLP(nn.Module):
    """Llama's feed-forward block."""

    def __init__(self, shape: LayerShape) -> None:
        super().__init__()
        self.gate_proj = linear(shape.width, shape.inner)
        self.up_proj = linear(shape.width, shape.inner)
        self.down_proj = linear(shape.inner, shape.width)

    def forward(self, x: Tensor) -> Tensor:
        """The block's addition to the residual stream."""
        out: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out

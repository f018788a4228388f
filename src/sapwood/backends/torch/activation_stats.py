"""Activation scales for SmoothQuant, one layer at a time, so that one layer is in memory.

Operation by operation this is what transformers does with the same text in float32: the results
have the same bits as those of `smoothquant.channel_rms`, and so have the int8 weights.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from sapwood.backends.torch.cpu_int8.smoothquant import random_text, rms_of
from sapwood.backends.torch.llama import LlamaLayer, LlamaModel
from sapwood.backends.torch.network import WHOLE

Embed = Callable[[Tensor], Tensor]  # rows of the embedding, [tokens, width]


class ActivationStats:
    """Runs random tokens through a model and measures its activations."""

    @torch.inference_mode()
    def __init__(self, net: LlamaModel, embed: Embed | None = None) -> None:
        """`embed` reads rows of the embedding where `net` does not hold it."""
        tokens = random_text(net.vocab)
        angles = torch.arange(len(tokens))[None, :, None].float() * net.rates
        angles = torch.cat((angles, angles), dim=-1)
        self.net = net
        self.turns = (
            (angles.cos() * net.amplitude)[:, None],
            (angles.sin() * net.amplitude)[:, None],
        )
        rows = F.embedding(tokens, net.embedding) if embed is None else embed(tokens)
        self.states = rows.float()[None]  # [1, tokens, width]

    @torch.inference_mode()
    def measure(self, layer: LlamaLayer) -> Tensor:
        """Run the text through the next layer; RMS of each channel of its MLP's input, [width]."""
        attended = self.states + F.linear(self._attend(layer), layer.out)
        x = self._normed(attended, layer.mlp_norm)
        gate = layer.gate_up[: self.net.inner]
        up = layer.gate_up[self.net.inner :]
        self.states = attended + F.linear(F.silu(F.linear(x, gate)) * F.linear(x, up), layer.down)
        return rms_of(x)

    def _attend(self, layer: LlamaLayer) -> Tensor:
        """Attention outputs, [1, tokens, heads * head width]."""
        net = self.net
        tokens = self.states.shape[1]
        x = self._normed(self.states, layer.norm)
        parts = [count * net.head_width for count in (net.heads, net.kv_heads, net.kv_heads)]
        biases = (
            [None] * len(parts) if layer.qkv_bias is None else torch.split(layer.qkv_bias, parts)
        )
        made = [
            F.linear(x, weight, bias)
            for weight, bias in zip(torch.split(layer.qkv, parts), biases, strict=True)
        ]
        query, key, value = (part.view(1, tokens, -1, net.head_width) for part in made)
        if layer.query_norm is not None and layer.key_norm is not None:
            query = self._normed(query, layer.query_norm)
            key = self._normed(key, layer.key_norm)
        query = self._turned(query)
        key = self._turned(key)
        value = value.transpose(1, 2)
        whole = layer.window == WHOLE or layer.window > tokens
        mask = None if whole else sliding(layer.window, tokens)
        grouped = net.heads != net.kv_heads
        out = F.scaled_dot_product_attention(
            query, key, value, mask, is_causal=mask is None, scale=net.scale, enable_gqa=grouped
        )
        return out.transpose(1, 2).reshape(1, tokens, -1)

    def _normed(self, x: Tensor, weight: Tensor) -> Tensor:
        return weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.net.eps))

    def _turned(self, x: Tensor) -> Tensor:
        """Heads with rotary embedding, [1, heads, tokens, head width]."""
        x, (cos, sin) = x.transpose(1, 2), self.turns
        left, right = x.chunk(2, -1)
        return x * cos + torch.cat((-right, left), dim=-1) * sin


def sliding(window: int, tokens: int) -> Tensor:
    """True where a token sees another, [1, 1, tokens, tokens]."""
    places = torch.arange(tokens)
    gap = places[:, None] - places
    return ((gap >= 0) & (gap < window))[None, None]

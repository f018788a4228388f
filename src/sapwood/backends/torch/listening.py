"""How loud the channels of a model are, heard layer by layer, so that a layer is in memory only while it is packed.

Operation for operation this is what transformers does with the same text in float32: what is heard has the
same bits as what `packed.smooth.listen` hears of a whole model, and what is packed by it too.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from sapwood.backends.torch.llama import Layer, Llama
from sapwood.backends.torch.mask import WHOLE
from sapwood.backends.torch.packed.smooth import TOKENS


class Listener:
    """A text of noise on its way through a model."""

    @torch.inference_mode()
    def __init__(self, net: Llama) -> None:
        noise = torch.Generator().manual_seed(0)
        tokens = torch.randint(net.vocab, (1, TOKENS), generator=noise)
        angles = torch.arange(TOKENS)[None, :, None].float() * net.rates
        angles = torch.cat((angles, angles), dim=-1)
        self.net, self.turns = net, ((angles.cos() * net.amplitude)[:, None], (angles.sin() * net.amplitude)[:, None])
        self.states = F.embedding(tokens, net.embedding).float()  # [1, tokens, width]

    @torch.inference_mode()
    def hear(self, layer: Layer) -> Tensor:
        """Take the text through the next layer; how loud each channel of its MLP's input is, [width]."""
        attended = self.states + F.linear(self._attend(layer), layer.out)
        x = self._normed(attended, layer.mlp_norm)
        gate, up = layer.gate_up[: self.net.inner], layer.gate_up[self.net.inner :]
        self.states = attended + F.linear(F.silu(F.linear(x, gate)) * F.linear(x, up), layer.down)
        return x.flatten(0, -2).square().mean(0).sqrt()

    def _attend(self, layer: Layer) -> Tensor:
        """What the tokens read of one another, [1, tokens, heads * head width]."""
        net, x = self.net, self._normed(self.states, layer.norm)
        parts = [count * net.head_width for count in (net.heads, net.kv_heads, net.kv_heads)]
        biases = [None] * len(parts) if layer.qkv_bias is None else torch.split(layer.qkv_bias, parts)
        made = [F.linear(x, weight, bias) for weight, bias in zip(torch.split(layer.qkv, parts), biases, strict=True)]
        query, key, value = (part.view(1, TOKENS, -1, net.head_width) for part in made)
        if layer.query_norm is not None and layer.key_norm is not None:
            query, key = self._normed(query, layer.query_norm), self._normed(key, layer.key_norm)
        query, key, value = self._turned(query), self._turned(key), value.transpose(1, 2)
        mask = None if layer.window == WHOLE or layer.window > TOKENS else sliding(layer.window)
        grouped = net.heads != net.kv_heads
        out = F.scaled_dot_product_attention(
            query, key, value, mask, is_causal=mask is None, scale=net.scale, enable_gqa=grouped
        )
        return out.transpose(1, 2).reshape(1, TOKENS, -1)

    def _normed(self, x: Tensor, weight: Tensor) -> Tensor:
        return weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.net.eps))

    def _turned(self, x: Tensor) -> Tensor:
        """Heads turned by the places of their tokens, [1, heads, tokens, head width]."""
        x, (cos, sin) = x.transpose(1, 2), self.turns
        left, right = x.chunk(2, -1)
        return x * cos + torch.cat((-right, left), dim=-1) * sin


def sliding(window: int) -> Tensor:
    """True where a token sees another, [1, 1, tokens, tokens]."""
    places = torch.arange(TOKENS)
    gap = places[:, None] - places
    return ((gap >= 0) & (gap < window))[None, None]

"""The EAGLE-3 head in packed layers: what the drafter asks of a head, in a dozen calls a level instead of fifty."""

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from sapwood.backends.torch.packed import kernels
from sapwood.backends.torch.packed.kernels import compiled, level, shrink
from sapwood.backends.torch.packed.linear import Linear
from sapwood.backends.torch.packed.modules import PackedLinear
from sapwood.backends.torch.packed.pieces import Floats, floats, pair


@compiled
def join(embeds: Any, states: Any, norms: Any, eps: Any, out: Any, scales: Any) -> None:
    """Norm embeddings and states, both [rows, width], side by side: out [rows, 2 * width], scaled."""
    width = embeds.shape[1]
    for r in range(embeds.shape[0]):
        first, second = level(embeds[r], eps), level(states[r], eps)
        for i in range(width):
            out[r, i] = embeds[r, i] * norms[0, i] * first
            out[r, width + i] = states[r, i] * norms[1, i] * second
        scales[r] = shrink(out[r], out[r])


@compiled
def turn(y: Any, scales: Any, positions: Any, rates: Any, query: Any, key: Any, value: Any) -> None:
    """Queries, keys and values [heads, rows, width] of products y [rows, all heads * width], the first two rotated."""
    heads, rows, width = query.shape
    kv_heads, half = key.shape[0], width // 2
    for r in range(rows):
        for i in range(half):
            angle = positions[r] * rates[i]
            cos, sin = np.float32(np.cos(angle)), np.float32(np.sin(angle))
            for h in range(heads + kv_heads):
                left, right = y[r, h * width + i] * scales[r], y[r, h * width + half + i] * scales[r]
                row = query[h, r] if h < heads else key[h - heads, r]
                row[i] = left * cos - right * sin
                row[half + i] = right * cos + left * sin
        for h in range(kv_heads):
            for i in range(width):
                value[h, r, i] = y[r, (heads + kv_heads + h) * width + i] * scales[r]


class PackedLayer:
    """The decoder layer; keys and values are kept by the drafter."""

    def __init__(self, layer: Any, shape: Any) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        self.shape, self.after, self.eps = shape, layer.after, np.float32(shape.eps)
        self.norms = np.stack([floats(layer.input_layernorm.weight), floats(layer.hidden_norm.weight)])
        self.middle_norm = floats(layer.post_attention_layernorm.weight)
        projections = (attention.q_proj, attention.k_proj, attention.v_proj)
        self.qkv = Linear(torch.cat([part.weight.detach() for part in projections]))
        self.gate_up = Linear(torch.cat((mlp.gate_proj.weight.detach(), mlp.up_proj.weight.detach())))
        self.out, self.down = PackedLinear(attention.o_proj), Linear(mlp.down_proj.weight.detach())
        self.rates = shape.theta ** (np.arange(shape.head_width // 2) / (-shape.head_width // 2))
        self.self_attn = self  # the drafter reads it there

    def project(self, embeds: Tensor, states: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values [1, heads, rows, d] of rows of embeddings and states, both [1, rows, width]."""
        rows, shape = embeds.shape[1], self.shape
        joined, array = pair(rows, 2 * shape.width)
        scales = np.empty(rows, np.float32)
        join(whole(embeds), whole(states), self.norms, self.eps, array, scales)
        made = [pair(heads, rows, shape.head_width) for heads in (shape.heads, shape.kv_heads, shape.kv_heads)]
        arrays = [array for _, array in made]
        turn(self.qkv(joined).numpy(), scales, positions[0].numpy(), self.rates, *arrays)
        query, key, value = (tensor[None] for tensor, _ in made)
        return query, key, value

    def attend(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        """What the rows read, [1, rows, width], under a mask [rows, keys]."""
        grouped = self.shape.heads != self.shape.kv_heads
        read = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, enable_gqa=grouped)
        out: Tensor = self.out(read.transpose(1, 2).flatten(2))
        return out

    def finish(self, states: Tensor, read: Tensor) -> Tensor:
        """The layer's output from its input states and what attention read, both [1, rows, width]."""
        rows, shape = states.shape[1], self.shape
        base = F.rms_norm(states, (shape.width,), torch.from_numpy(self.norms[1]), shape.eps) if self.after else states
        x = (base + read)[0]
        entered, entered_array = pair(rows, shape.width)
        gated, gated_array = pair(rows, shape.inner)
        scales, bits = np.empty(rows, np.float32), np.empty(shape.inner, np.int32)
        kernels.enter(x.numpy(), self.middle_norm, self.eps, entered_array, scales)
        kernels.gate(self.gate_up(entered).numpy(), scales, gated_array, scales, bits, bits.view(np.float32))
        kernels.add(x.numpy(), self.down(gated).numpy(), scales)
        return x[None]


class PackedEagle3:
    """A whole head, as the drafter knows it."""

    kind = "eagle3"

    def __init__(self, net: Any) -> None:
        self.config, self.vocabulary = net.config, net.vocabulary
        self.fc, self.head = PackedLinear(net.fc), Linear(net.lm_head.weight.detach())
        self.norm, self.eps = floats(net.norm.weight), np.float32(net.config.shape.eps)
        self.midlayer = PackedLayer(net.midlayer, net.config.shape)

    def begin(self, features: Tensor) -> Tensor:
        """States of the first step from the target's features."""
        states: Tensor = self.fc(features)
        return states

    def logits(self, outputs: Tensor) -> Tensor:
        """Logits over the draft vocabulary, [rows, draft vocab]."""
        entered, array = pair(*outputs.shape)
        scales, scale_array = pair(len(outputs), 1)
        kernels.enter(outputs.contiguous().numpy(), self.norm, self.eps, array, scale_array[:, 0])
        return self.head(entered).mul_(scales)


def whole(rows: Tensor) -> Floats:
    """Rows [1, rows, width] as an array for compiled code."""
    found: Floats = rows[0].contiguous().numpy()
    return found

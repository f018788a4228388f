"""The EAGLE-3 head in packed layers: what the drafter asks of a head, in a few compiled calls a level."""

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from sapwood.arrays import FloatArray, IntArray
from sapwood.backends.torch.packed import drafting, kernels, stream
from sapwood.backends.torch.packed.kernels import compiled, level, shrink
from sapwood.backends.torch.packed.linear import Linear
from sapwood.backends.torch.packed.machine import DEEP
from sapwood.backends.torch.packed.modules import PackedLinear
from sapwood.backends.torch.packed.passes import APART, place, width_of
from sapwood.backends.torch.packed.pieces import Floats, floats, pair
from sapwood.backends.torch.packed.reading import WIDTHS
from sapwood.backends.torch.packed.team import DESK, TEAM


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
        self.streamed = stream.available()
        if self.streamed:
            parts = (self.qkv, self.out.inner, self.gate_up, self.down)
            self.places = [np.array(place(part)) for part in parts]

    def project(self, embeds: Tensor, states: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values [1, heads, rows, d] of rows of embeddings and states, both [1, rows, width]."""
        rows, shape = embeds.shape[1], self.shape
        query, query_array = pair(rows, shape.heads, shape.head_width)
        (key, key_array), (value, value_array) = (pair(shape.kv_heads, rows, shape.head_width) for _ in range(2))
        angles = positions[0].numpy()[:, None] * self.rates
        turns = np.stack((np.cos(angles), np.sin(angles))).astype(np.float32)
        made = query_array, key_array, value_array
        if self.streamed:
            drafting.project(whole(embeds), whole(states), self.norms, self.eps, self.places[0], turns, *made)
        else:
            joined, array = pair(rows, 2 * shape.width)
            scales = np.empty(rows, np.float32)
            join(whole(embeds), whole(states), self.norms, self.eps, array, scales)
            drafting.turn_rows(self.qkv(joined).numpy(), scales, turns, *made)
        return query.transpose(0, 1)[None], key[None], value[None]

    def attend(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        """What the rows read, [1, rows, width], under a mask [rows, keys]."""
        shape = self.shape
        if self.streamed and shape.head_width in WIDTHS and key.stride() == value.stride() and key.stride(3) == 1:
            near = query[0].transpose(0, 1).contiguous().numpy()
            hidden = np.empty((len(near), 0), np.bool_) if mask is None else mask.numpy()
            found = drafting.attend(
                near, key.data_ptr(), value.data_ptr(), key.stride(1) // shape.head_width, key.shape[2],
                shape.kv_heads, hidden, self.places[1],
            )  # fmt: skip
            return torch.from_numpy(found[:, : shape.width])[None]
        grouped = shape.heads != shape.kv_heads
        read = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, enable_gqa=grouped)
        out: Tensor = self.out(read.transpose(1, 2).flatten(2))
        return out

    def finish(self, states: Tensor, read: Tensor) -> Tensor:
        """The layer's output from its input states and what attention read, both [1, rows, width]."""
        rows, shape = states.shape[1], self.shape
        base = F.rms_norm(states, (shape.width,), torch.from_numpy(self.norms[1]), shape.eps) if self.after else states
        x = (base + read)[0]
        if self.streamed:
            drafting.think(x.numpy(), self.middle_norm, self.eps, self.places[2], self.places[3], shape.inner)
            return x[None]
        entered, entered_array = pair(rows, shape.width)
        gated, gated_array = pair(rows, shape.inner)
        scales, bits = np.empty(rows, np.float32), np.empty(shape.inner, np.int32)
        kernels.enter(x.numpy(), self.middle_norm, self.eps, entered_array, scales)
        kernels.gate(self.gate_up(entered).numpy(), scales, gated_array, scales, bits)
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
        self.tokens: IntArray = self.vocabulary.numpy()
        if self.midlayer.streamed:
            self.place = np.array(place(self.head))
        self._wake(net.fc.weight.shape[1])

    @torch.inference_mode()
    def _wake(self, features: int) -> None:
        """Draft from one row, so that what is compiled (at first for seconds) is ready before rounds are timed."""
        layer, width = self.midlayer, self.config.shape.width
        states = self.begin(torch.zeros(1, features))[None]
        query, key, value = layer.project(torch.zeros(1, 1, width), states, torch.zeros(1, 1, dtype=torch.int64))
        read = [layer.attend(query, key, value, mask) for mask in (None, torch.ones(1, 1, dtype=torch.bool))]
        outputs = layer.finish(states, read[0])[0]
        if self.best(outputs, 1) is None:
            self.logits(outputs)

    def grower(self, embedding: Tensor) -> Any:
        """What grows whole trees of this head in one compiled call; None where its layers are not streamed."""
        from sapwood.backends.torch.packed.growth import grower_for

        return grower_for(self, embedding)

    def begin(self, features: Tensor) -> Tensor:
        """States of the first step from the target's features."""
        states: Tensor = self.fc(features)
        return states

    def logits(self, outputs: Tensor) -> Tensor:
        """Logits over the draft vocabulary, [rows, draft vocab]."""
        if self.midlayer.streamed:
            return self._speak(outputs, 0)[0]
        entered, array = pair(*outputs.shape)
        scales, scale_array = pair(len(outputs), 1)
        kernels.enter(outputs.contiguous().numpy(), self.norm, self.eps, array, scale_array[:, 0])
        return self.head(entered).mul_(scales)

    def best(self, outputs: Tensor, count: int) -> tuple[IntArray, FloatArray] | None:
        """Best tokens of each row and their probabilities, both [rows, count]; None where logits must be asked for."""
        if not self.midlayer.streamed:
            return None
        _, ids, chances = self._speak(outputs, min(count, self.head.outputs))
        return self.tokens[ids], chances

    def _speak(self, outputs: Tensor, count: int) -> tuple[Tensor, IntArray, FloatArray]:
        """Logits, and the best of each row."""
        rows, vocab = len(outputs), self.head.outputs
        logits, array = pair(rows, width_of(self.head) + APART)
        ids, chances = np.empty((rows, count), np.int64), np.empty((rows, count))
        grid, scales = np.zeros((rows, self.head.packed.depth * DEEP), np.uint8), np.empty(rows, np.float32)
        TEAM.run(
            drafting.speak, outputs.contiguous().numpy(), self.norm, self.eps, self.place, grid, scales, array, vocab,
            ids, chances, np.zeros((3, DESK), np.int64),
        )  # fmt: skip
        return logits[:, :vocab], ids, chances


def whole(rows: Tensor) -> Floats:
    """Rows [1, rows, width] as an array for compiled code."""
    found: Floats = rows[0].contiguous().numpy()
    return found

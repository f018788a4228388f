"""The EAGLE-3 head with int8 layers, run in a few compiled calls a level."""

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from sapwood.backends.torch.cpu_int8 import eagle_kernels, int8_gemm, pointwise
from sapwood.backends.torch.cpu_int8.attention_plan import floats, pair
from sapwood.backends.torch.cpu_int8.int_attention import WIDTHS
from sapwood.backends.torch.cpu_int8.intrinsics import DEEP
from sapwood.backends.torch.cpu_int8.linear import Int8Linear
from sapwood.backends.torch.cpu_int8.pointwise import compiled, level, shrink
from sapwood.backends.torch.cpu_int8.quant_modules import QuantLinear
from sapwood.backends.torch.cpu_int8.runner import APART, Floats, place, width_of
from sapwood.backends.torch.cpu_int8.thread_team import COUNTERS, TEAM
from sapwood.core.array_types import FloatArray, IntArray
from sapwood.core.whole_tree import TreeBuilder


@compiled
def join(embeds: Any, states: Any, norms: Any, eps: Any, out: Any, scales: Any) -> None:
    """Norm and concatenate embeddings and states [rows, width]: out [rows, 2 * width], scaled."""
    width = embeds.shape[1]
    for r in range(embeds.shape[0]):
        first = level(embeds[r], eps)
        second = level(states[r], eps)
        for i in range(width):
            out[r, i] = embeds[r, i] * norms[0, i] * first
            out[r, width + i] = states[r, i] * norms[1, i] * second
        scales[r] = shrink(out[r], out[r])


class Int8EagleLayer:
    """The decoder layer of the head; the drafter keeps keys and values."""

    def __init__(self, layer: Any, shape: Any) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        self.shape = shape
        self.after = layer.after
        self.eps = np.float32(shape.eps)
        self.norms = np.stack(
            [floats(layer.input_layernorm.weight), floats(layer.hidden_norm.weight)]
        )
        self.middle_norm = floats(layer.post_attention_layernorm.weight)
        projections = (attention.q_proj, attention.k_proj, attention.v_proj)
        self.qkv = Int8Linear(torch.cat([part.weight.detach() for part in projections]))
        self.gate_up = Int8Linear(
            torch.cat((mlp.gate_proj.weight.detach(), mlp.up_proj.weight.detach()))
        )
        self.out = QuantLinear(attention.o_proj)
        self.down = Int8Linear(mlp.down_proj.weight.detach())
        self.rates = shape.theta ** (np.arange(shape.head_width // 2) / (-shape.head_width // 2))
        self.self_attn = self  # the name that drafters use
        self.streamed = int8_gemm.available()
        if self.streamed:
            parts = (self.qkv, self.out.inner, self.gate_up, self.down)
            self.places = [np.array(place(part)) for part in parts]

    def project(
        self, embeds: Tensor, states: Tensor, positions: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values [1, heads, rows, d] of inputs [1, rows, width]."""
        rows = embeds.shape[1]
        shape = self.shape
        query, query_array = pair(rows, shape.heads, shape.head_width)
        (key, key_array), (value, value_array) = (
            pair(shape.kv_heads, rows, shape.head_width) for _ in range(2)
        )
        angles = positions[0].numpy()[:, None] * self.rates
        turns = np.stack((np.cos(angles), np.sin(angles))).astype(np.float32)
        made = query_array, key_array, value_array
        if self.streamed:
            eagle_kernels.project(
                whole(embeds), whole(states), self.norms, self.eps, self.places[0], turns, *made
            )
        else:
            joined, array = pair(rows, 2 * shape.width)
            scales = np.empty(rows, np.float32)
            join(whole(embeds), whole(states), self.norms, self.eps, array, scales)
            eagle_kernels.turn_rows(self.qkv(joined).numpy(), scales, turns, *made)
        return query.transpose(0, 1)[None], key[None], value[None]

    def attend(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        """Attention outputs [1, rows, width] under a mask [rows, keys]."""
        shape = self.shape
        if (
            self.streamed
            and shape.head_width in WIDTHS
            and key.stride() == value.stride()
            and key.stride(3) == 1
        ):
            near = query[0].transpose(0, 1).contiguous().numpy()
            hidden = np.empty((len(near), 0), np.bool_) if mask is None else mask.numpy()
            found = eagle_kernels.attend(
                near,
                key.data_ptr(),
                value.data_ptr(),
                key.stride(1) // shape.head_width,
                key.shape[2],
                shape.kv_heads,
                hidden,
                self.places[1],
            )
            return torch.from_numpy(found[:, : shape.width])[None]
        grouped = shape.heads != shape.kv_heads
        read = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, enable_gqa=grouped)
        out: Tensor = self.out(read.transpose(1, 2).flatten(2))
        return out

    def finish(self, states: Tensor, read: Tensor) -> Tensor:
        """The layer's output from its inputs and the attention outputs, both [1, rows, width]."""
        rows = states.shape[1]
        shape = self.shape
        base = (
            F.rms_norm(states, (shape.width,), torch.from_numpy(self.norms[1]), shape.eps)
            if self.after
            else states
        )
        x = (base + read)[0]
        if self.streamed:
            eagle_kernels.add_mlp(
                x.numpy(), self.middle_norm, self.eps, self.places[2], self.places[3], shape.inner
            )
            return x[None]
        entered, entered_array = pair(rows, shape.width)
        gated, gated_array = pair(rows, shape.inner)
        scales = np.empty(rows, np.float32)
        bits = np.empty(shape.inner, np.int32)
        pointwise.norm_rows(x.numpy(), self.middle_norm, self.eps, entered_array, scales)
        pointwise.gate(self.gate_up(entered).numpy(), scales, gated_array, scales, bits)
        pointwise.add(x.numpy(), self.down(gated).numpy(), scales)
        return x[None]


class Int8Eagle3:
    """An int8 EAGLE-3 head with the interface of `Eagle3Head`."""

    kind = "eagle3"

    def __init__(self, net: Any) -> None:
        self.config = net.config
        self.vocabulary = net.vocabulary
        self.fc = QuantLinear(net.fc)
        self.head = Int8Linear(net.lm_head.weight.detach())
        self.norm = floats(net.norm.weight)
        self.eps = np.float32(net.config.shape.eps)
        self.midlayer = Int8EagleLayer(net.midlayer, net.config.shape)
        self.tokens: IntArray = self.vocabulary.numpy()
        if self.midlayer.streamed:
            self.place = np.array(place(self.head))
        self._warm_up(net.fc.weight.shape[1])

    @torch.inference_mode()
    def _warm_up(self, features: int) -> None:
        """Draft from one row, so that kernels are compiled before rounds are timed."""
        layer, width = self.midlayer, self.config.shape.width
        states = self.begin(torch.zeros(1, features))[None]
        query, key, value = layer.project(
            torch.zeros(1, 1, width), states, torch.zeros(1, 1, dtype=torch.int64)
        )
        read = [
            layer.attend(query, key, value, mask)
            for mask in (None, torch.ones(1, 1, dtype=torch.bool))
        ]
        outputs = layer.finish(states, read[0])[0]
        if self.best(outputs, 1) is None:
            self.logits(outputs)

    def tree_builder(self, embedding: Tensor) -> TreeBuilder | None:
        """A builder of whole trees in one compiled call; None without our kernels."""
        from sapwood.backends.torch.cpu_int8.tree_builder import builder_for

        return builder_for(self, embedding)

    def begin(self, features: Tensor) -> Tensor:
        """Input states of the first step from the target's features."""
        states: Tensor = self.fc(features)
        return states

    def logits(self, outputs: Tensor) -> Tensor:
        """Logits over the draft vocabulary, [rows, draft vocab]."""
        if self.midlayer.streamed:
            return self._logits_and_best(outputs, 0)[0]
        entered, array = pair(*outputs.shape)
        scales, scale_array = pair(len(outputs), 1)
        pointwise.norm_rows(
            outputs.contiguous().numpy(), self.norm, self.eps, array, scale_array[:, 0]
        )
        return self.head(entered).mul_(scales)

    def best(self, outputs: Tensor, count: int) -> tuple[IntArray, FloatArray] | None:
        """Best tokens of each row and their probs, both [rows, count]; None without our kernels."""
        if not self.midlayer.streamed:
            return None
        _, ids, chances = self._logits_and_best(outputs, min(count, self.head.outputs))
        return self.tokens[ids], chances

    def _logits_and_best(self, outputs: Tensor, count: int) -> tuple[Tensor, IntArray, FloatArray]:
        """Logits, and the best tokens of each row."""
        rows = len(outputs)
        vocab = self.head.outputs
        logits, array = pair(rows, width_of(self.head) + APART)
        ids = np.empty((rows, count), np.int64)
        chances = np.empty((rows, count))
        grid = np.zeros((rows, self.head.packed.depth * DEEP), np.uint8)
        scales = np.empty(rows, np.float32)
        TEAM.run(
            eagle_kernels.draft_logits,
            outputs.contiguous().numpy(),
            self.norm,
            self.eps,
            self.place,
            grid,
            scales,
            array,
            vocab,
            ids,
            chances,
            np.zeros((3, COUNTERS), np.int64),
        )
        return logits[:, :vocab], ids, chances


def whole(rows: Tensor) -> Floats:
    """Rows [1, rows, width] as an array for compiled code."""
    found: Floats = rows[0].contiguous().numpy()
    return found

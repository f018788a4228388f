"""A language model with int8 layers, as a network of the torch backend.

A layer is four int8 matrix products and a few compiled steps between them. A row's logits are the
same bits in every pass that holds it, so that speculation changes nothing, not even a rounding.
"""

import copy
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from sapwood.backends.torch.cpu_int8 import attention, forward, pointwise
from sapwood.backends.torch.cpu_int8.attention_plan import (
    AttentionRows,
    floats,
    pair,
    pieces,
)
from sapwood.backends.torch.cpu_int8.block_gemm import BlockMatrix
from sapwood.backends.torch.cpu_int8.block_linear import BlockLinear, PackedLayer
from sapwood.backends.torch.cpu_int8.eagle3 import Int8Eagle3
from sapwood.backends.torch.cpu_int8.experts import each_expert
from sapwood.backends.torch.cpu_int8.int8_gemm import StreamedMatrix
from sapwood.backends.torch.cpu_int8.linear import Int8Linear, MatrixSource, SplitLinear
from sapwood.backends.torch.cpu_int8.quant_modules import pack_linears
from sapwood.backends.torch.cpu_int8.runner import UNFINISHED, Floats, PassRunnerCpu
from sapwood.backends.torch.hf.submodel import check_cut
from sapwood.backends.torch.kv_slots import KvLayout, KvPlane
from sapwood.backends.torch.llama import LayerExtras, LlamaLayer, LlamaModel, RotaryAngles
from sapwood.backends.torch.network import Kept, PassInput
from sapwood.core.array_types import FloatArray, IntArray
from sapwood.heads.eagle3 import Eagle3Head

LONGEST = 32_768  # tokens of context up to which the weights of attention add up exactly
NONE = np.empty(0, np.float32)
Linear = Int8Linear | BlockLinear


class Int8Layer:
    """One decoder layer."""

    def __init__(self, layer: LlamaLayer | PackedLayer) -> None:
        self.norm = floats(layer.norm)
        self.mlp_norm = floats(layer.mlp_norm)
        self.bias = NONE if layer.qkv_bias is None else floats(layer.qkv_bias)
        norms = (layer.query_norm, layer.key_norm)
        self.norms = np.stack([NONE if norm is None else floats(norm) for norm in norms])
        self.qkv, self.out, self.gate_up, self.down = linears(layer)
        self.window = layer.window
        self.rotary = layer.rotary
        self.extras = layer.extras or LayerExtras()
        self.sinks = NONE if self.extras.sinks is None else floats(self.extras.sinks)

    def rounded(self, bits: int) -> "Int8Layer":
        """The same layer in fewer bits."""
        made = copy.copy(self)
        for name in ("qkv", "out", "gate_up", "down"):
            setattr(made, name, getattr(self, name).rounded(bits))
        return made


def linears(layer: LlamaLayer | PackedLayer) -> tuple[Linear, Linear, Linear, Linear]:
    """The products of a layer: queries, keys and values; attention output; the two of the MLP."""
    if isinstance(layer, PackedLayer):
        return layer.qkv, layer.out, layer.gate_up, layer.down
    # inputs of the split ones have outlier channels: one int8 grid for a row is too coarse;
    # those of gate and up are smoothed, which takes a norm before them and one MLP
    extras = layer.extras
    smoothed = extras is None or (extras.pre_norms and extras.router is None)
    return (
        SplitLinear(layer.qkv),
        Int8Linear(layer.out),
        each_expert(Int8Linear if smoothed else SplitLinear, layer.gate_up),
        each_expert(SplitLinear, layer.down),
    )


def packed_layer(layer: LlamaLayer) -> PackedLayer:
    """A layer quantised to 8 bits."""
    return PackedLayer.of(layer, *linears(layer))


class EmbeddingRows(Protocol):
    """An embedding whose rows are read on demand."""

    def take(self, tokens: IntArray, /) -> FloatArray:
        """Rows of tokens, a float32 copy [tokens, width]."""


class Int8Network:
    """All layers and the output head."""

    # skipped sublayers: 2 i is the attention of layer i, 2 i + 1 its MLP
    skip: frozenset[int] = frozenset()
    longest = LONGEST  # tokens of a session

    def __init__(
        self,
        net: LlamaModel,
        layers: Iterable[LlamaLayer | PackedLayer],
        head: MatrixSource | Linear | None = None,
        embedding: EmbeddingRows | None = None,
    ) -> None:
        """`head` and `embedding`, read by rows, replace those of `net` where memory is short."""
        self.net = net
        self.layers = [Int8Layer(layer) for layer in layers]
        self.precision = precision_of(self.layers)
        self.norm = floats(net.norm)
        self.head: Linear = (
            head
            if isinstance(head, BlockLinear | Int8Linear)
            else Int8Linear(net.head if head is None else head)
        )
        self.levels = attention.levels(net.head_width)
        self.eps = np.float32(net.eps)
        self.scale = np.float32(net.scale)
        self.cap = np.float32(net.attention_cap)
        self.rows_read = embedding
        whole = embedding is None and net.embedding.dtype == torch.float32
        self.embedding: Floats | None = net.embedding.detach().numpy() if whole else None
        # cosines and sines by position, see `_turns`
        self.rotary_table: Floats = np.empty((len(net.angles), 2, 0, len(net.rates)), np.float32)
        self.windows = {layer.window for layer in self.layers}
        self.layout = layout_of(net, len(self.layers))
        self._prepare()

    def _prepare(self) -> None:
        """Set up whole passes in one call, if the weights are laid out for them."""
        streamed = isinstance(self.head.packed, StreamedMatrix | BlockMatrix)
        self.runner = (
            PassRunnerCpu(self.net, self.layers, self.norm, self.head, self.skip)
            if streamed
            else None
        )

    @staticmethod
    def compiled() -> bool:
        """True if the pass is in the compile cache."""
        return forward.known()

    # --------------------------------------------------------------------------- network interface
    def read(self, rows: PassInput, watched: Collection[int]) -> tuple[Tensor, Kept]:
        """Run the layers."""
        if self.runner is not None:
            states, _, kept = self._pass(self.runner, rows, watched)
            return states, kept
        x, kept = self._layers(rows, watched)
        return self._finish(x, watched, kept), kept

    def _finish(self, x: Tensor, watched: Collection[int], kept: Kept) -> Tensor:
        """Final norm of the residual stream, [rows, width]; kept too if it is watched."""
        states = torch.empty_like(x)
        pointwise.finish(x.numpy(), self.norm, self.eps, states.numpy())
        if len(self.layers) in watched:
            kept[len(self.layers)] = states
        return states

    def compute_logits(self, states: Tensor) -> Tensor:
        """Logits by the int8 output head."""
        exact = states.float().contiguous()
        rows = torch.empty_like(exact)
        scales = torch.empty(len(exact), 1)
        pointwise.present(exact.numpy(), rows.numpy(), scales.numpy()[:, 0])
        return self.head(rows).mul_(scales)

    def score(self, rows: PassInput, watched: Collection[int]) -> tuple[Tensor, Kept]:
        """Run the layers and the output head."""
        return self.mix(rows, watched, len(rows.tokens))

    def mix(
        self, rows: PassInput, watched: Collection[int], logit_rows: int
    ) -> tuple[Tensor, Kept]:
        """Run the layers, and the output head on the first rows."""
        if self.runner is not None:
            beside = len(rows.spans) == 1 and logit_rows == len(rows.tokens)
            _, logits, kept = self._pass(
                self.runner, rows, watched, logit_rows=logit_rows, beside=beside
            )
            return logits, kept
        states, kept = self.read(rows, watched)
        return self.compute_logits(states[:logit_rows]), kept

    def convert_head(self, net: nn.Module) -> Any:
        """The head with int8 linear layers."""
        return Int8Eagle3(net) if isinstance(net, Eagle3Head) else pack_linears(net)

    # ------------------------------------------------------------------------------------ in part
    def check_layer(self, layer: int) -> None:
        """Refuse a layer out of range."""
        check_cut(layer, len(self.layers))

    def layer_input(
        self, rows: PassInput, watched: Collection[int], layer: int
    ) -> tuple[Tensor, Kept]:
        """Run the layers before this one."""
        if self.runner is not None:
            start = self._embed(rows)
            _, _, kept = self._pass(
                self.runner, rows, watched, stop=layer, start=start, logit_rows=UNFINISHED
            )
            return start, kept
        return self._layers(rows, watched, stop=layer)

    def resume(
        self, rows: PassInput, watched: Collection[int], layer: int, states: Tensor
    ) -> tuple[Tensor, Kept]:
        """Run the other layers and the output head."""
        if self.runner is not None:
            start = states.clone()
            _, logits, kept = self._pass(
                self.runner, rows, watched, layer, start=start, logit_rows=len(start)
            )
            return logits, kept
        x, kept = self._layers(rows, watched, layer, start=states.clone())
        states = self._finish(x, watched, kept)
        return self.compute_logits(states), kept

    parallel_stages = False  # a pass has the buffers and the threads for itself

    def span(
        self, rows: PassInput, first: int, stop: int, states: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Run some of the layers, behind the last of them the output head."""
        start = self._embed(rows) if states is None else states.clone()
        last = len(self.layers)
        if stop == last:
            logits, kept = self.resume(rows, [last], first, start)
            return kept[last], logits
        if self.runner is None:
            return self._layers(rows, (), first, stop, start)[0], None
        self._pass(self.runner, rows, (), first, stop, start, UNFINISHED)
        return start, None

    def skipping(self, sublayers: Collection[int]) -> "Int8Network":
        """The same network without these sublayers."""
        made = copy.copy(self)
        made.skip = frozenset(sublayers)
        made._prepare()
        return made

    def rounded(self, bits: int) -> "Int8Network":
        """The network without split inputs; below eight bits, with coarser weights too."""
        made = copy.copy(self)
        made.layers = [layer.rounded(bits) for layer in self.layers]
        made._prepare()
        return made

    # -------------------------------------------------------------------------------------- a pass
    def _pass(
        self,
        runner: PassRunnerCpu,
        rows: PassInput,
        watched: Collection[int],
        first: int = 0,
        stop: int | None = None,
        start: Tensor | None = None,
        logit_rows: int = 0,
        beside: bool = False,
    ) -> tuple[Tensor, Tensor, Kept]:
        """Run a pass in one call, from the embeddings or from `start`; see `PassRunnerCpu.run`."""
        x = self._embed(rows) if start is None else start
        end = len(self.layers) if stop is None else stop
        return runner.run(
            x, rows, self._turns(rows), watched, first, end, logit_rows, beside=beside
        )

    def _layers(
        self,
        rows: PassInput,
        watched: Collection[int],
        first: int = 0,
        stop: int | None = None,
        start: Tensor | None = None,
    ) -> tuple[Tensor, Kept]:
        """Run layer by layer: residual stream [rows, width], and watched inputs."""
        net = self.net
        count = len(rows.tokens)
        kept = Kept()
        x = self._embed(rows) if start is None else start  # updated in place
        entered, entered_array = pair(count, net.width)
        read, read_array = pair(count, net.heads * net.head_width)
        gated, gated_array = pair(count, net.inner)
        stream = x.numpy()
        scales = np.empty(count, np.float32)
        bits = np.empty(net.inner, np.int32)
        turns = self._turns(rows)
        row_groups = list(pieces(net, rows, self.windows))
        for index, layer in enumerate(self.layers[first:stop], first):
            runs_attention = 2 * index not in self.skip
            runs_mlp = 2 * index + 1 not in self.skip
            if index in watched:
                kept[index] = x.clone()
            if runs_attention:
                pointwise.norm_rows(stream, layer.norm, self.eps, entered_array, scales)
                self._attend(
                    index, layer, layer.qkv(entered).numpy(), scales, turns, row_groups, read_array
                )
                y = layer.out(read).numpy()
            if runs_attention and runs_mlp:
                pointwise.add_norm_rows(
                    stream, y, scales, layer.mlp_norm, self.eps, entered_array, scales
                )
            elif runs_attention:
                pointwise.add(stream, y, scales)
            elif runs_mlp:
                pointwise.norm_rows(stream, layer.mlp_norm, self.eps, entered_array, scales)
            if runs_mlp:
                pointwise.gate(layer.gate_up(entered).numpy(), scales, gated_array, scales, bits)
                pointwise.add(stream, layer.down(gated).numpy(), scales)
        return x, kept

    def _embed(self, rows: PassInput) -> Tensor:
        """Embeddings of the rows, a float32 copy [rows, width]."""
        found = self._embedding_rows(rows)
        scale = self.net.embedding_scale
        return found if scale == 1.0 else torch.from_numpy(found.numpy() * np.float32(scale))

    def _embedding_rows(self, rows: PassInput) -> Tensor:
        """`_embed` before it is scaled."""
        if self.rows_read is not None:
            return torch.from_numpy(self.rows_read.take(rows.tokens))
        if self.embedding is not None:  # torch's threads would still spin during the pass
            return torch.from_numpy(self.embedding.take(rows.tokens, 0))
        return torch.nn.functional.embedding(
            torch.from_numpy(rows.tokens), self.net.embedding
        ).float()

    def _attend(
        self,
        index: int,
        layer: Int8Layer,
        y: Floats,  # [rows, queries, keys and values]
        scales: Floats,  # [rows] of y, in; of the attention outputs, out
        turns: Floats,
        row_groups: Sequence[AttentionRows],
        out: Floats,
    ) -> None:
        """Attention outputs of a layer, [rows, heads * width]."""
        for piece in row_groups:
            rows = piece.rows
            attention.spread(
                y[rows],
                scales[rows],
                layer.bias,
                layer.norms,
                self.eps,
                turns[layer.rotary, 0][rows],
                turns[layer.rotary, 1][rows],
                piece.slots,
                piece.query_array,
                piece.steps,
                self.scale,
                piece.plane_array[2 * index : 2 * index + 2],
                piece.size_array[2 * index : 2 * index + 2],
                self.levels,
            )
            piece.softmax_weights(index, layer.window, self.cap, layer.sinks)
            attention.collect(piece.sum_array, piece.results, out[rows], scales[rows])

    def _turns(self, rows: PassInput) -> Floats:
        """Cosines and sines of each row's position, [angles, 2, rows, head width / 2]."""
        longest = max([block.slots + block.gap for block in rows.blocks])
        if longest > self.rotary_table.shape[2]:
            self.rotary_table = np.stack([rotations(one, 2 * longest) for one in self.net.angles])
        found: Floats = self.rotary_table.take(rows.positions, 2)
        return found


def rotations(angles: RotaryAngles, count: int) -> Floats:
    """Cosines and sines of the first positions, [2, count, head width / 2]."""
    rates = angles.rates.double().numpy()
    steps = np.arange(count)[:, None] * rates
    found = np.stack((np.cos(steps), np.sin(steps)))
    found *= np.where(rates > 0, angles.amplitude, 1.0)
    return found.astype(np.float32)


def precision_of(layers: Sequence[Int8Layer]) -> str:
    """The dtype of most weights of the layers: int4 or int8."""
    sizes = {4: 0, 8: 0}
    for layer in layers:
        for part in (layer.qkv, layer.out, layer.gate_up, layer.down):
            bits = part.packed.bits if isinstance(part.packed, BlockMatrix) else 8
            sizes[bits] += part.outputs * part.inputs
    return "int4" if sizes[4] > sizes[8] else "int8"


def layout_of(net: LlamaModel, count: int) -> KvLayout:
    """KV layout: int16 keys and values, and a second buffer with their quantisation steps."""
    cpu = torch.device("cpu")
    shapes = [
        KvPlane(net.kv_heads, net.head_width, torch.int16, cpu),
        KvPlane(net.kv_heads, 1, torch.float32, cpu),
    ]
    keys = {layer: (0, 2 * layer) for layer in range(count)}
    values = {layer: (0, 2 * layer + 1) for layer in range(count)}
    return KvLayout(shapes, [2 * count, 2 * count], keys, values)

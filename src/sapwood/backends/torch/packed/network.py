"""A Llama-like model in packed eight-bit layers, as a network of the torch backend.

A layer is four packed products and a few compiled passes between them. A row's logits are the same
bits in every pass that holds it, so that speculation changes nothing, not even a rounding.
"""

import copy
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sapwood.arrays import IntArray
from sapwood.backends.torch.cache import Layout, Plane
from sapwood.backends.torch.llama import Layer, Llama
from sapwood.backends.torch.network import Kept, Rows
from sapwood.backends.torch.packed import attention, kernels
from sapwood.backends.torch.packed.eagle3 import PackedEagle3
from sapwood.backends.torch.packed.linear import Fine, Linear, Matrix
from sapwood.backends.torch.packed.modules import pack_linears
from sapwood.backends.torch.packed.passes import UNFINISHED, Passes
from sapwood.backends.torch.packed.pieces import Floats, Piece, floats, pair, pieces
from sapwood.backends.torch.packed.stream import Streamed
from sapwood.backends.torch.parts import check_cut
from sapwood.heads.eagle3 import Eagle3

LONGEST = 32_768  # tokens of context up to which the weights of attention add up exactly
NONE = np.empty(0, np.float32)


class PackedLayer:
    """One layer, ready to run."""

    def __init__(self, layer: Layer) -> None:
        self.norm, self.mlp_norm = floats(layer.norm), floats(layer.mlp_norm)
        self.bias = NONE if layer.qkv_bias is None else floats(layer.qkv_bias)
        norms = (layer.query_norm, layer.key_norm)
        self.norms = np.stack([NONE if norm is None else floats(norm) for norm in norms])
        # the inputs of these two have channels far louder than the rest: one grid for all of a row is too coarse
        self.qkv, self.down = Fine(layer.qkv), Fine(layer.down)
        self.out, self.gate_up = Linear(layer.out), Linear(layer.gate_up)
        self.window = layer.window

    def rounded(self, bits: int) -> "PackedLayer":
        """The same layer in fewer bits."""
        made = copy.copy(self)
        for name in ("qkv", "out", "gate_up", "down"):
            setattr(made, name, getattr(self, name).rounded(bits))
        return made


class Packed:
    """The whole model."""

    precision = "int8"
    skip: frozenset[int] = frozenset()  # sublayers that are left out: 2 i is the attention of layer i, 2 i + 1 its MLP

    def __init__(self, net: Llama, layers: Iterable[Layer], head: Matrix | None = None) -> None:
        """`head` stands for the description's own, for those who do not want to hold all of it."""
        self.net = net
        self.layers = [PackedLayer(layer) for layer in layers]
        self.norm, self.head = floats(net.norm), Linear(net.head if head is None else head)
        self.levels = attention.levels(net.head_width)
        self.eps, self.scale = np.float32(net.eps), np.float32(net.scale)
        self.rates = net.rates.double().numpy()
        whole = net.embedding.dtype == torch.float32
        self.words: Floats | None = net.embedding.detach().numpy() if whole else None
        self.turned: Floats = np.empty((2, 0, len(self.rates)), np.float32)  # see `_turns`, by position
        self.windows = {layer.window for layer in self.layers}
        self.layout = layout_of(net, len(self.layers))
        self._prepare()

    def _prepare(self) -> None:
        """Whole passes in one call, where the weights are streamed; else None."""
        streamed = isinstance(self.head.packed, Streamed)
        self.passes = Passes(self.net, self.layers, self.norm, self.head, self.skip) if streamed else None

    # -------------------------------------------------------------------------------------- the seam
    def read(self, rows: Rows, watched: Collection[int]) -> tuple[Tensor, Kept]:
        """Run the layers."""
        if self.passes is not None:
            states, _, kept = self._pass(self.passes, rows, watched)
            return states, kept
        x, kept = self._layers(rows, watched)
        return self._finish(x, watched, kept), kept

    def _finish(self, x: Tensor, watched: Collection[int], kept: Kept) -> Tensor:
        """What the output head reads of the residual stream, [rows, width]; kept too where it is watched."""
        states = torch.empty_like(x)
        kernels.finish(x.numpy(), self.norm, self.eps, states.numpy())
        if len(self.layers) in watched:
            kept[len(self.layers)] = states
        return states

    def speak(self, states: Tensor) -> Tensor:
        """Logits by the packed output head."""
        exact = states.float().contiguous()
        rows, scales = torch.empty_like(exact), torch.empty(len(exact), 1)
        kernels.present(exact.numpy(), rows.numpy(), scales.numpy()[:, 0])
        return self.head(rows).mul_(scales)

    def score(self, rows: Rows, watched: Collection[int]) -> tuple[Tensor, Kept]:
        """Run the layers and the output head."""
        return self.mix(rows, watched, len(rows.tokens))

    def mix(self, rows: Rows, watched: Collection[int], spoken: int) -> tuple[Tensor, Kept]:
        """Run the layers, and the output head on the first rows."""
        if self.passes is not None:
            beside = len(rows.spans) == 1 and spoken == len(rows.tokens)
            _, logits, kept = self._pass(self.passes, rows, watched, spoken=spoken, beside=beside)
            return logits, kept
        states, kept = self.read(rows, watched)
        return self.speak(states[:spoken]), kept

    def adopt(self, net: nn.Module) -> Any:
        """The head with its linear layers packed."""
        return PackedEagle3(net) if isinstance(net, Eagle3) else pack_linears(net)

    # ------------------------------------------------------------------------------------ in part
    def check_layer(self, layer: int) -> None:
        """Refuse a layer that is not there."""
        check_cut(layer, len(self.layers))

    def enter(self, rows: Rows, watched: Collection[int], layer: int) -> tuple[Tensor, Kept]:
        """Run the layers before this one."""
        if self.passes is not None:
            start = self._embed(rows)
            _, _, kept = self._pass(self.passes, rows, watched, stop=layer, start=start, spoken=UNFINISHED)
            return start, kept
        return self._layers(rows, watched, stop=layer)

    def resume(self, rows: Rows, watched: Collection[int], layer: int, states: Tensor) -> tuple[Tensor, Kept]:
        """Run the others and the output head."""
        if self.passes is not None:
            start = states.clone()
            _, logits, kept = self._pass(self.passes, rows, watched, layer, start=start, spoken=len(start))
            return logits, kept
        x, kept = self._layers(rows, watched, layer, start=states.clone())
        states = self._finish(x, watched, kept)
        return self.speak(states), kept

    def skipping(self, sublayers: Collection[int]) -> "Packed":
        """The same without these sublayers."""
        made = copy.copy(self)
        made.skip = frozenset(sublayers)
        made._prepare()
        return made

    def rounded(self, bits: int) -> "Packed":
        """The same with rows rounded once instead of twice; below eight bits, weights on a coarser grid too."""
        made = copy.copy(self)
        made.layers = [layer.rounded(bits) for layer in self.layers]
        made._prepare()
        return made

    # -------------------------------------------------------------------------------------- a pass
    def _pass(
        self,
        passes: Passes,
        rows: Rows,
        watched: Collection[int],
        first: int = 0,
        stop: int | None = None,
        start: Tensor | None = None,
        spoken: int = 0,
        beside: bool = False,
    ) -> tuple[Tensor, Tensor, Kept]:
        """See `Passes.run`; it begins with the embeddings, or with what is given."""
        x = self._embed(rows) if start is None else start
        end = len(self.layers) if stop is None else stop
        return passes.run(x, rows, self._turns(rows.positions), watched, first, end, spoken, beside=beside)

    def _layers(
        self, rows: Rows, watched: Collection[int], first: int = 0, stop: int | None = None, start: Tensor | None = None
    ) -> tuple[Tensor, Kept]:
        """The residual stream after these layers, [rows, width], and the inputs of watched ones; see `enter`."""
        net, count, kept = self.net, len(rows.tokens), Kept()
        x = self._embed(rows) if start is None else start  # it is added to in place
        entered, entered_array = pair(count, net.width)
        read, read_array = pair(count, net.heads * net.head_width)
        gated, gated_array = pair(count, net.inner)
        stream, scales = x.numpy(), np.empty(count, np.float32)
        bits = np.empty(net.inner, np.int32)
        turns = self._turns(rows.positions)
        crowd = list(pieces(net, rows, self.windows))
        for index, layer in enumerate(self.layers[first:stop], first):
            attends, thinks = 2 * index not in self.skip, 2 * index + 1 not in self.skip
            if index in watched:
                kept[index] = x.clone()
            if attends:
                kernels.enter(stream, layer.norm, self.eps, entered_array, scales)
                self._attend(index, layer, layer.qkv(entered).numpy(), scales, turns, crowd, read_array)
                y = layer.out(read).numpy()
            if attends and thinks:
                kernels.add_enter(stream, y, scales, layer.mlp_norm, self.eps, entered_array, scales)
            elif attends:
                kernels.add(stream, y, scales)
            elif thinks:
                kernels.enter(stream, layer.mlp_norm, self.eps, entered_array, scales)
            if thinks:
                kernels.gate(layer.gate_up(entered).numpy(), scales, gated_array, scales, bits)
                kernels.add(stream, layer.down(gated).numpy(), scales)
        return x, kept

    def _embed(self, rows: Rows) -> Tensor:
        """The embeddings of the rows, float32 [rows, width], in memory of their own."""
        if self.words is not None:  # without torch's threads, which would spin on into the pass
            return torch.from_numpy(self.words.take(rows.tokens, 0))
        return torch.nn.functional.embedding(torch.from_numpy(rows.tokens), self.net.embedding).float()

    def _attend(
        self,
        index: int,
        layer: PackedLayer,
        y: Floats,  # [rows, queries, keys and values]
        scales: Floats,  # [rows] of y, in; of what the rows read, out
        turns: Floats,
        crowd: Sequence[Piece],
        out: Floats,
    ) -> None:
        """What the rows read, [rows, heads * width]."""
        for piece in crowd:
            rows = piece.rows
            attention.spread(
                y[rows], scales[rows], layer.bias, layer.norms, self.eps, turns[0][rows], turns[1][rows],
                piece.slots, piece.query_array, piece.steps, self.scale, piece.plane_array[2 * index : 2 * index + 2],
                piece.size_array[2 * index : 2 * index + 2], self.levels,
            )  # fmt: skip
            piece.weigh(index, layer.window)
            attention.collect(piece.sum_array, piece.results, out[rows], scales[rows])

    def _turns(self, positions: IntArray) -> Floats:
        """Cosines and sines of each row's position, [2, rows, head width / 2]."""
        if (most := int(positions.max())) >= self.turned.shape[1]:
            angles, amplitude = np.arange(2 * most + 1)[:, None] * self.rates, self.net.amplitude
            self.turned = (np.stack((np.cos(angles), np.sin(angles))) * amplitude).astype(np.float32)
        found: Floats = self.turned.take(positions, 1)
        return found


def layout_of(net: Llama, count: int) -> Layout:
    """Keys and values in whole numbers, and in a second buffer the sizes of their steps."""
    cpu = torch.device("cpu")
    shapes = [Plane(net.kv_heads, net.head_width, torch.int16, cpu), Plane(net.kv_heads, 1, torch.float32, cpu)]
    keys = {layer: (0, 2 * layer) for layer in range(count)}
    values = {layer: (0, 2 * layer + 1) for layer in range(count)}
    return Layout(shapes, [2 * count, 2 * count], keys, values)

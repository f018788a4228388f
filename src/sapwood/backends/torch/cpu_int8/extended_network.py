"""The int8 network of models that are more than a Llama, by the same rules and with the same bits.

What a layer has beside Llama's parts is in `LayerExtras`; a layer without one of them adds nothing.
"""

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sapwood.backends.torch.cpu_int8 import experts, pointwise
from sapwood.backends.torch.cpu_int8.attention_plan import AttentionRows, floats, pair, pieces
from sapwood.backends.torch.cpu_int8.block_gemm import BlockMatrix
from sapwood.backends.torch.cpu_int8.experts import parts_of
from sapwood.backends.torch.cpu_int8.extended_forward import (
    WIDEST,
    forward_extended,
    known,
    plan_extended,
)
from sapwood.backends.torch.cpu_int8.int8_gemm import StreamedMatrix
from sapwood.backends.torch.cpu_int8.int_attention import WIDTHS
from sapwood.backends.torch.cpu_int8.network import Int8Layer, Int8Network
from sapwood.backends.torch.cpu_int8.pass_args import (
    MOST_LINES,
    ExtraScratch,
    ExtraTables,
    PassScratch,
    SessionTables,
)
from sapwood.backends.torch.cpu_int8.runner import Floats, PassRunnerCpu, place, width_of
from sapwood.backends.torch.cpu_int8.thread_team import TEAM, AsyncTask, aligned
from sapwood.backends.torch.llama import LlamaModel
from sapwood.backends.torch.network import Kept, PassInput
from sapwood.core.array_types import IntArray


def both(parts: Sequence[Tensor | None], width: int) -> Floats:
    """Two vectors, [2, width]; zeros for one that is absent, [2, 0] if both are."""
    if all(part is None for part in parts):
        return np.empty((2, 0), np.float32)
    return np.stack([np.zeros(width, np.float32) if x is None else floats(x) for x in parts])


def tables_of(net: LlamaModel, layers: Sequence[Int8Layer]) -> ExtraTables:
    """Tables of all layers."""
    extras = [layer.extras for layer in layers]
    empty = np.empty(0, np.float32)
    norms = [layer.row_norms for layer in extras]
    sums = [(layer.out_bias, None if net.experts else layer.down_bias) for layer in extras]
    return ExtraTables(
        pre_norms=np.array([layer.pre_norms for layer in extras]),
        post_norms=np.stack(
            [both(layer.post_norms or (None, None), net.width) for layer in extras]
        ),
        row_norms=np.stack([empty if two is None else floats(torch.cat(two)) for two in norms]),
        add_bias=np.stack([both(two, net.width) for two in sums]),
        gate_bias=np.stack([gate_bias_of(net, layer.gate_up_bias) for layer in extras]),
        gate=pointwise.gate_form(net.activation, net.gate_slope, net.gate_limit),
        sinks=np.stack([layer.sinks for layer in layers]),
        attention_cap=np.float32(net.attention_cap),
        logit_cap=np.float32(net.logit_cap),
        routers=np.stack([router_of(net, layer.router) for layer in extras]),
        router_bias=np.stack(
            [empty if layer.router_bias is None else floats(layer.router_bias) for layer in extras]
        ),
        down_bias=np.stack([down_bias_of(net, layer.down_bias) for layer in extras]),
        experts=np.array([expert_places(layer) for layer in layers]),
        normalised=net.normalised,
    )


def gate_bias_of(net: LlamaModel, bias: Tensor | None) -> Floats:
    """Biases of gate and up, [experts or 1, 2, inner]; [experts or 1, 2, 0] if there are none."""
    count = max(net.experts, 1)
    return floats(torch.empty(count, 2, 0) if bias is None else bias.reshape(count, 2, -1))


def down_bias_of(net: LlamaModel, bias: Tensor | None) -> Floats:
    """Biases of the down projections of experts, [experts, width] or [experts, 0]."""
    return floats(torch.empty(net.experts, 0) if bias is None or not net.experts else bias)


def router_of(net: LlamaModel, router: Tensor | None) -> Floats:
    """The router of a layer, [width, experts]: experts side by side."""
    if router is None:
        return np.empty((net.width, 0), np.float32)
    return np.ascontiguousarray(floats(router).T)


def expert_places(layer: Int8Layer) -> list[list[list[int]]]:
    """Weights of the experts of a layer, [2, experts, 6]; without experts those of its MLP."""
    if not isinstance(layer.down.packed, StreamedMatrix | BlockMatrix):
        return [[], []]  # the pass that runs layer by layer needs none
    return [[place(one) for one in parts_of(part)] for part in (layer.gate_up, layer.down)]


class ExtendedRunner(PassRunnerCpu):
    """Runs whole passes of an extended network."""

    widths = (*WIDTHS, WIDEST)

    def __init__(self, extra: ExtraTables, *given: Any) -> None:
        super().__init__(*given)
        self.extra = extra

    def _begin(
        self, sessions: SessionTables, work: PassScratch, stages: IntArray, counters: IntArray
    ) -> AsyncTask:
        workers, _, keys = work.weights.shape
        needed = (
            keys if self.extra.attention_cap > 0 else 0,
            width_of(self.head) if self.extra.logit_cap > 0 else 0,
        )
        # new for each pass: the pass before may still be under way
        room = self._room(len(work.stream), np.empty((workers, 2, max(needed)), np.float32))
        return TEAM.begin(
            forward_extended,
            counters[0],
            self.net,
            self.extra,
            sessions,
            work,
            room,
            stages,
            counters,
        )

    def _room(self, rows: int, caps: Floats) -> ExtraScratch:
        """Scratch buffers, those of experts empty where there are none."""
        experts = self.sizes.experts
        chosen = self.sizes.chosen
        places = rows * chosen
        return ExtraScratch(
            caps=caps,
            routes=np.empty((rows, 2, experts), np.float32),
            picks=np.empty((rows, chosen), np.int64),
            shares=np.empty((rows, chosen), np.float32),
            slots=np.empty((rows, chosen), np.int64),
            owners=np.empty(places, np.int64),
            firsts=np.empty(experts + 1, np.int64),
            active=np.empty(experts + 1, np.int64),
            routed=aligned(MOST_LINES * places, self.longest, dtype=np.uint8),
            scales=np.empty(places, np.float32),
        )

    def _new_buffers(self, rows: int, keys: int, workers: int) -> dict[str, Any]:
        """Buffers for intermediate results; a row has a place for each of its experts."""
        found = super()._new_buffers(rows, keys, workers)
        if (places := rows * self.sizes.chosen) > rows:
            found |= {
                "entered": np.empty((places, self.longest), np.float32),
                "whole": aligned(MOST_LINES * places, self.longest, dtype=np.uint8),
                "products": np.empty((places, self.widest), np.float32),
            }
        return found

    def _plan(self, first: int, stop: int, ends: bool, speaks: bool) -> IntArray:
        row_norms = self.extra.row_norms.shape[1] > 0
        experts = self.sizes.experts > 0
        return plan_extended(first, stop, self.active, row_norms, experts, ends, speaks)


class ExtendedNetwork(Int8Network):
    """All layers and the output head of a model that is more than a Llama."""

    def _prepare(self) -> None:
        self.extra = tables_of(self.net, self.layers)
        streamed = isinstance(self.head.packed, StreamedMatrix | BlockMatrix)
        self.runner = (
            ExtendedRunner(self.extra, self.net, self.layers, self.norm, self.head, self.skip)
            if streamed
            else None
        )

    @staticmethod
    def compiled() -> bool:
        """True if the pass is in the compile cache."""
        return known()

    def compute_logits(self, states: Tensor) -> Tensor:
        """Logits by the int8 output head, with the model's soft cap."""
        logits = super().compute_logits(states)
        if self.extra.logit_cap > 0:
            scratch = np.empty((2, logits.shape[1]), np.float32)
            for row in logits.numpy():
                pointwise.soft_cap(row, self.extra.logit_cap, scratch[0], scratch[1].view(np.int32))
        return logits

    def _layers(
        self,
        rows: PassInput,
        watched: Collection[int],
        first: int = 0,
        stop: int | None = None,
        start: Tensor | None = None,
    ) -> tuple[Tensor, Kept]:
        """Run layer by layer: residual stream [rows, width], and watched inputs."""
        kept = Kept()
        x = self._embed(rows) if start is None else start  # updated in place
        scales = np.empty(len(x), np.float32)
        turns = self._turns(rows)
        row_groups = list(pieces(self.net, rows, self.windows))
        for index, layer in enumerate(self.layers[first:stop], first):
            if index in watched:
                kept[index] = x.clone()
            if 2 * index not in self.skip:
                y = self._attention(index, layer, x, scales, turns, row_groups)
                self._add(2 * index, x, y, scales)
            if 2 * index + 1 not in self.skip and self.net.experts:
                self._experts(index, layer, x, scales)
            elif 2 * index + 1 not in self.skip:
                self._add(2 * index + 1, x, self._mlp(index, layer, x, scales), scales)
        return x, kept

    def _attention(
        self,
        index: int,
        layer: Int8Layer,
        x: Tensor,
        scales: Floats,
        turns: Floats,
        row_groups: Sequence[AttentionRows],
    ) -> Floats:
        """Outputs of attention, [rows, width], before their scales."""
        net = self.net
        y = layer.qkv(self._scaled_inputs(index, layer.norm, x, scales)).numpy()
        if self.extra.row_norms.shape[1]:
            queries = net.heads * net.head_width
            for r, row in enumerate(y):
                pointwise.norm_row(row, scales[r], self.extra.row_norms[index], queries, self.eps)
            scales[:] = 1.0
        read, read_array = pair(len(x), net.heads * net.head_width)
        self._attend(index, layer, y, scales, turns, row_groups, read_array)
        return layer.out(read).numpy()

    def _mlp(self, index: int, layer: Int8Layer, x: Tensor, scales: Floats) -> Floats:
        """Outputs of the MLP, [rows, width], before their scales."""
        y = layer.gate_up(self._scaled_inputs(index, layer.mlp_norm, x, scales)).numpy()
        gated, gated_array = pair(len(x), self.net.inner)
        bits = np.empty(self.net.inner, np.int32)
        pointwise.gate_with(
            y, self.extra.gate_bias[index, 0], scales, self.extra.gate, gated_array, scales, bits
        )
        return layer.down(gated).numpy()

    def _experts(self, index: int, layer: Int8Layer, x: Tensor, scales: Floats) -> None:
        """Add the outputs of each row's experts to the residual stream."""
        net = self.net
        rows = len(x)
        entered = self._scaled_inputs(index, layer.mlp_norm, x, scales)
        picks, slots = (np.empty((rows, net.chosen), np.int64) for _ in range(2))
        shares = np.empty((rows, net.chosen), np.float32)
        routes = np.empty((2, net.experts), np.float32)
        for r, row in enumerate(entered.numpy()):
            experts.route_row(
                row, scales[r], self.extra.routers[index], self.extra.router_bias[index],
                self.extra.normalised, routes[0], routes[1].view(np.int32), picks[r], shares[r],
            )  # fmt: skip
        firsts, active = (np.empty(net.experts + 1, np.int64) for _ in range(2))
        owners = np.empty(rows * net.chosen, np.int64)
        experts.group_rows(picks, firsts, active, slots, owners)
        chooser = np.empty(rows * net.chosen, np.int64)  # the row of each place
        chooser[slots] = np.arange(rows)[:, None]
        y = np.empty((rows * net.chosen, net.width), np.float32)
        factors = scales[chooser]
        gated, gated_array = pair(rows * net.chosen, net.inner)
        bits = np.empty(net.inner, np.int32)
        for e in active[1 : 1 + active[0]].tolist():
            mine = slice(firsts[e], firsts[e + 1])
            ups = parts_of(layer.gate_up)[e](entered[torch.from_numpy(chooser[mine])]).numpy()
            pointwise.gate_with(
                ups, self.extra.gate_bias[index, e], factors[mine], self.extra.gate,
                gated_array[mine], factors[mine], bits,
            )  # fmt: skip
            y[mine] = parts_of(layer.down)[e](gated[mine]).numpy()
        norm = self.extra.post_norms[index, 1]
        spare = np.empty(net.width, np.float32)
        for r, row in enumerate(x.numpy()):
            experts.add_experts(
                row, y, factors, slots[r], owners, shares[r], self.extra.down_bias[index], norm,
                self.eps, spare,
            )  # fmt: skip

    def _scaled_inputs(self, index: int, norm: Floats, x: Tensor, scales: Floats) -> Tensor:
        """Inputs of a sublayer in [-1, 1], [rows, width]."""
        entered, entered_array = pair(*x.shape)
        if self.extra.pre_norms[index]:
            pointwise.norm_rows(x.numpy(), norm, self.eps, entered_array, scales)
        else:
            pointwise.present(x.numpy(), entered_array, scales)
        return entered

    def _add(self, sublayer: int, x: Tensor, y: Floats, scales: Floats) -> None:
        """Add the outputs of a sublayer to the residual stream."""
        layer, part = divmod(sublayer, 2)
        spare = np.empty(x.shape[1], np.float32)
        for r, row in enumerate(x.numpy()):
            pointwise.add_output(
                row,
                y[r],
                scales[r],
                self.extra.add_bias[layer, part],
                self.extra.post_norms[layer, part],
                self.eps,
                spare,
            )

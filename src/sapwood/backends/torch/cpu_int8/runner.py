"""Runs whole passes of an int8 network: tables and buffers for the compiled forward."""

import sys
import threading
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sapwood.backends.torch.cpu_int8 import attention
from sapwood.backends.torch.cpu_int8.block_linear import BlockLinear
from sapwood.backends.torch.cpu_int8.forward import forward, plan_stages
from sapwood.backends.torch.cpu_int8.int_attention import STRIP, WIDTHS
from sapwood.backends.torch.cpu_int8.intrinsics import BLOCK, DEEP
from sapwood.backends.torch.cpu_int8.linear import Int8Linear
from sapwood.backends.torch.cpu_int8.pass_args import (
    MOST_LINES,
    NetworkTables,
    PassScratch,
    SessionTables,
)
from sapwood.backends.torch.cpu_int8.pointwise import compiled
from sapwood.backends.torch.cpu_int8.thread_team import (
    COUNTERS,
    PREFETCHER,
    TEAM,
    AsyncTask,
    aligned,
)
from sapwood.backends.torch.llama import LlamaModel
from sapwood.backends.torch.network import WHOLE, Kept, MaskBlock, PassInput, joined
from sapwood.core.array_types import BoolArray, IntArray

# elements of padding between rows of logits: at a distance of a power of two they would compete for
# the same cache sets
APART = 16

# pass sizes whose buffers are kept, and the most rows of such a pass
BUFFER_SETS = 8
MOST_ROWS = 64
KEYS = 256  # buffers for keys grow in steps of so many
UNUSED = 2  # references to an unused array of the pool: the list's, and getrefcount's argument
UNFINISHED = -1  # number of logit rows of a pass that also skips the final norm

Floats = np.ndarray[Any, np.dtype[np.float32]]


@dataclass(frozen=True, slots=True)
class VisibleKeys:
    """Keys that rows attend to in layers with one window size."""

    oldest: IntArray  # [rows] first committed key
    seen: BoolArray  # [rows, nodes]


def visible_keys(block: MaskBlock, window: int, start: int, stop: int, nodes: int) -> VisibleKeys:
    """Keys that the rows from `start` to `stop` see, among the first `nodes` nodes."""
    oldest = np.empty((1, block.rows), np.int64)
    seen = np.empty((1, block.rows * len(block.parents)), np.bool_)
    mark_visible(block, np.array([window]), oldest, seen, 0, 0)
    rows = seen.reshape(block.rows, -1)
    return VisibleKeys(oldest[0, start:stop], np.ascontiguousarray(rows[start:stop, :nodes]))


def mark_visible(
    block: MaskBlock, windows: IntArray, oldest: IntArray, seen: BoolArray, row: int, mark: int
) -> None:
    """Write the keys that a session's rows see in layers with each of these windows.

    `oldest` [windows, rows] from `row` on is the first committed key of each row, and `seen`
    [windows, rows * nodes] from `mark` on its nodes.
    """
    length = block.length
    if len(block.parents) > 1:
        _mark(block.parents, block.depths, block.since, length, windows, oldest, seen, row, mark)
        return
    # a root alone; its columns are read-only, which is another type for compiled code
    seen[:, mark] = True
    for w, window in enumerate(windows.tolist()):
        oldest[w, row] = 0 if window == WHOLE else min(max(length - window + 1, 0), length)


@compiled
def _mark(
    parents: Any,  # [nodes] int64
    depths: Any,  # [nodes] int64
    since: int,
    length: int,
    windows: Any,
    oldest: Any,
    seen: Any,
    row: int,
    mark: int,
) -> None:
    """`mark_visible`, compiled."""
    nodes = parents.shape[0]
    for w in range(windows.shape[0]):
        window = windows[w]
        for r in range(nodes - since):
            node = since + r
            own = seen[w, mark + r * nodes : mark + (r + 1) * nodes]
            own[:] = False
            first = 0  # position of the first key
            if window != WHOLE:
                first = max(length + depths[node] - window + 1, 0)
            oldest[w, row + r] = min(first, length)
            while node >= 0 and length + depths[node] >= first:
                own[node] = True
                node = parents[node]


def place(linear: Int8Linear | BlockLinear) -> list[int]:
    """Addresses and sizes of a layer's weights, and the form of its inputs."""
    return [*linear.packed.where.tolist(), linear.form]


def width_of(linear: Int8Linear | BlockLinear) -> int:
    """Outputs, padded to whole blocks."""
    return int(linear.packed.blocks) * BLOCK


class BufferPool:
    """Reuses arrays for logits that are no longer referenced; page faults of new ones are slow."""

    def __init__(self, width: int) -> None:
        self.width = width
        self._held: list[np.ndarray[Any, Any]] = []
        self._lock = threading.Lock()  # two threads must not take the same array

    def take(self, rows: int) -> Floats:
        """An array for so many rows, [rows, width]."""
        with self._lock:
            return self._take(rows)

    def _take(self, rows: int) -> Floats:
        free = [i for i in range(len(self._held)) if sys.getrefcount(self._held[i]) == UNUSED]
        fits = [i for i in free if len(self._held[i]) >= rows]
        if not fits:
            for i in reversed(free):
                del self._held[i]
            self._held.append(np.empty((rows, self.width), np.float32))
            fits = [len(self._held) - 1]
        return self._held[fits[0]][:rows]  # the view holds a reference to the array


class PassRunnerCpu:
    """Runs the passes of a network, each in one compiled call."""

    widths: tuple[int, ...] = WIDTHS  # of heads with vector kernels

    def __init__(
        self,
        net: LlamaModel,
        layers: Sequence[Any],
        norm: Floats,
        head: Int8Linear | BlockLinear,
        skip: Collection[int],
    ) -> None:
        # the layers keep the memory that places point to alive
        self.sizes = net
        self.head = head
        self.layers = layers
        windows = sorted({layer.window for layer in layers})
        self.windows = np.array(windows)
        self.active = np.array(
            [[2 * i not in skip, 2 * i + 1 not in skip] for i in range(len(layers))]
        )
        parts = [[layer.qkv, layer.out, layer.gate_up, layer.down] for layer in layers]
        self.net = NetworkTables(
            places=np.array([[place(part) for part in layer] for layer in parts]),
            norms=np.stack([np.stack((layer.norm, layer.mlp_norm)) for layer in layers]),
            bias=np.stack([layer.bias for layer in layers]),
            head_norms=np.stack([layer.norms for layer in layers]),
            sights=np.array([windows.index(layer.window) for layer in layers]),
            rotary=np.array([layer.rotary for layer in layers]),
            head=np.array(place(head)),
            norm=norm,
            eps=np.float32(net.eps),
            scale=np.float32(net.scale),
            levels=attention.levels(net.head_width),
            kv_heads=net.kv_heads,
            inner=net.inner,
        )
        self.free_buffers: dict[tuple[int, int, int], dict[str, Any]] = {}
        self.pool = BufferPool(width_of(head) + APART)
        self.stages: dict[tuple[int, ...], IntArray] = {}
        self.keeps: dict[tuple[int, ...], IntArray] = {}
        self.longest = max(part.packed.depth * DEEP for layer in [*parts, [head]] for part in layer)
        self.widest = max(width_of(part) for layer in parts for part in layer)

    def run(
        self,
        stream: Tensor,
        rows: PassInput,
        turns: Floats,
        watched: Collection[int],
        first: int,
        stop: int,
        logit_rows: int,
        *,
        beside: bool = False,
    ) -> tuple[Tensor, Tensor, Kept]:
        """Run a pass: final states [rows, width], logits [logit_rows, vocab], watched inputs.

        The residual stream [rows, width] goes through the layers from `first` to `stop` in place;
        with `beside`, the pass overlaps the caller until the slots of the rows are settled.
        """
        layers = len(self.layers)
        count = len(stream)
        ends = logit_rows != UNFINISHED
        wanted = tuple(sorted(layer for layer in watched if first <= layer < stop))
        # inputs of watched layers, and the final hidden states
        kept = np.empty((len(wanted) + 1, count, self.sizes.width), np.float32)
        logits = self.pool.take(max(logit_rows, 0))
        size = (
            count,
            -(-max(block.slots for block in rows.blocks) // KEYS) * KEYS,
            torch.get_num_threads(),
        )
        buffers = self.free_buffers.pop(size, None) or self._new_buffers(*size)
        given = {"stream": stream.numpy(), "kept": kept, "states": kept[-1], "logits": logits}
        work = PassScratch(keep=self._keep(wanted), **given, **buffers, prefetch=PREFETCHER.take())
        stages = self._stages(first, stop, ends, logit_rows > 0)
        # the first row is the state of the task
        counters = np.zeros((1 + len(stages), COUNTERS), np.int64)
        task = self._begin(self._session_tables(rows, turns), work, stages, counters)
        task.then(partial(self._keep_buffers, size, buffers))
        if beside:
            rows.spans[0].slots.settle = task.finish
        else:
            task.finish()
        found = {layer: torch.from_numpy(kept[i]) for i, layer in enumerate(wanted)}
        states = torch.from_numpy(kept[-1])
        if ends and layers in watched:
            found[layers] = states
        return states, torch.from_numpy(logits[:, : self.head.outputs]), found

    def _begin(
        self, sessions: SessionTables, work: PassScratch, stages: IntArray, counters: IntArray
    ) -> AsyncTask:
        """Begin the compiled pass."""
        return TEAM.begin(forward, counters[0], self.net, sessions, work, stages, counters)

    def _plan(self, first: int, stop: int, ends: bool, speaks: bool) -> IntArray:
        """The stages of a pass."""
        return plan_stages(first, stop, self.active, ends, speaks)

    def _keep(self, wanted: tuple[int, ...]) -> IntArray:
        """Index of each kept layer input, as in `PassScratch`."""
        if wanted not in self.keeps:
            self.keeps[wanted] = np.array(
                [wanted.index(n) if n in wanted else -1 for n in range(len(self.layers))]
            )
        return self.keeps[wanted]

    def _stages(self, *asked: int) -> IntArray:
        """The stages of a pass, cached."""
        if asked not in self.stages:
            first, stop, ends, speaks = asked
            self.stages[asked] = self._plan(first, stop, bool(ends), bool(speaks))
        return self.stages[asked]

    def _keep_buffers(self, size: tuple[int, int, int], buffers: dict[str, Any]) -> None:
        """Keep the buffers of a pass for later passes of the same size."""
        if size[0] <= MOST_ROWS:
            kept = {} if len(self.free_buffers) >= BUFFER_SETS else self.free_buffers
            self.free_buffers = {**kept, size: buffers}

    def _new_buffers(self, rows: int, keys: int, workers: int) -> dict[str, Any]:
        """Buffers for intermediate results."""
        net = self.sizes
        group = net.heads // net.kv_heads
        strip = STRIP if net.head_width in self.widths else net.head_width
        return {
            "entered": np.empty((rows, self.longest), np.float32),
            "whole": aligned(MOST_LINES * rows, self.longest, dtype=np.uint8),
            "products": np.empty((rows, self.widest), np.float32),
            "scales": np.empty(rows, np.float32),
            "queries": aligned(rows, net.heads, net.head_width, dtype=np.int16),
            "steps": np.empty((rows, net.heads), np.float32),
            "spare": np.empty((workers, 2, net.head_width), np.float32),
            "weights": np.empty((workers, group, keys + BLOCK), np.float32),
            "shares": np.empty((workers, group, keys + BLOCK), np.int16),
            "sums": np.empty((workers, net.head_width // strip, group, strip), np.float32),
            "marks": np.empty((workers, 3 + group), np.float32),
            "bits": np.empty((workers, net.inner), np.int32),
        }

    def _session_tables(self, rows: PassInput, turns: Floats) -> SessionTables:
        """Tables of the sessions of a pass: rows, slots and visible keys."""
        table = []
        slots = []
        runs = []
        windows = len(self.windows)
        marks = sum(block.rows * len(block.parents) for block in rows.blocks)
        oldest = np.empty((windows, len(rows.tokens)), np.int64)
        seen = np.empty((windows, marks), np.bool_)
        first = run = mark = 0
        for block, span in zip(rows.blocks, rows.spans, strict=True):
            planes, sizes = span.slots.buffers
            runs.append(span.slots.runs(block.slots))
            slots.append(span.slots.places(range(span.start, span.start + span.rows)))
            mark_visible(block, self.windows, oldest, seen, first, mark)
            table.append([
                first, span.rows, block.length, block.since, run, len(runs[-1]), mark,
                planes.data_ptr(), sizes.data_ptr(), planes.shape[2],
            ])  # fmt: skip
            first = first + span.rows
            run = run + len(runs[-1])
            mark = mark + span.rows * len(block.parents)
        return SessionTables(
            pieces=np.array(table),
            turns=turns,
            slots=joined(slots),
            runs=joined(runs),
            oldest=oldest,
            seen=seen,
        )

"""Whole passes of a packed network: the tables and the memory that the compiled pass asks for."""

import sys
import threading
from collections.abc import Collection, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sapwood.arrays import IntArray
from sapwood.backends.torch.llama import Llama
from sapwood.backends.torch.network import Kept, Rows, joined
from sapwood.backends.torch.packed import attention
from sapwood.backends.torch.packed.forward import course, forward
from sapwood.backends.torch.packed.linear import Linear
from sapwood.backends.torch.packed.machine import BLOCK, DEEP
from sapwood.backends.torch.packed.pieces import Floats, cut
from sapwood.backends.torch.packed.plan import Crowd, Net, Work
from sapwood.backends.torch.packed.reading import STRIP, WIDTHS
from sapwood.backends.torch.packed.soon import SOON
from sapwood.backends.torch.packed.stream import aligned
from sapwood.backends.torch.packed.team import DESK, TEAM

APART = 16  # numbers between rows of logits: rows a power of two apart would crowd the same lines of the caches

ROOMS, TREES = 8, 64  # sizes of passes whose room is kept, and the most rows of one
KEYS = 256  # steps in which room for keys grows
UNUSED = 2  # references to an array that is only on the shelf: the list's, and the question's own
UNFINISHED = -1  # rows that speak where the final norm is not wanted either


def place(linear: Linear) -> list[int]:
    """Where the weights of a product lie, and whether its rows come in two parts."""
    return [*linear.packed.where.tolist(), int(linear.fine)]


def width_of(linear: Linear) -> int:
    """Outputs with what fills the last block."""
    return int(linear.packed.blocks) * BLOCK


class Shelf:
    """Memory for logits, used again when nobody looks at them any more: fresh pages cost more than the numbers."""

    def __init__(self, width: int) -> None:
        self.width = width
        self._held: list[np.ndarray[Any, Any]] = []
        self._lock = threading.Lock()  # two must not find the same place free

    def take(self, rows: int) -> Floats:
        """Room for so many rows, [rows, width]."""
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
        return self._held[fits[0]][:rows]  # which keeps the array until its last view is gone


class Passes:
    """A network's passes, each one compiled call."""

    def __init__(self, net: Llama, layers: Sequence[Any], norm: Floats, head: Linear, skip: Collection[int]) -> None:
        self.sizes, self.head, self.layers = net, head, layers  # the layers hold what places point to
        self.windows = sorted({layer.window for layer in layers})
        self.active = np.array([[2 * i not in skip, 2 * i + 1 not in skip] for i in range(len(layers))])
        parts = [[layer.qkv, layer.out, layer.gate_up, layer.down] for layer in layers]
        self.net = Net(
            places=np.array([[place(part) for part in layer] for layer in parts]),
            norms=np.stack([np.stack((layer.norm, layer.mlp_norm)) for layer in layers]),
            bias=np.stack([layer.bias for layer in layers]),
            head_norms=np.stack([layer.norms for layer in layers]),
            sights=np.array([self.windows.index(layer.window) for layer in layers]),
            head=np.array(place(head)),
            norm=norm,
            eps=np.float32(net.eps),
            scale=np.float32(net.scale),
            levels=attention.levels(net.head_width),
            kv_heads=net.kv_heads,
            inner=net.inner,
        )
        self.rooms: dict[tuple[int, int, int], dict[str, Any]] = {}
        self.shelf = Shelf(width_of(head) + APART)
        self.courses: dict[tuple[int, ...], IntArray] = {}
        self.keeps: dict[tuple[int, ...], IntArray] = {}
        self.longest = max(part.packed.depth * DEEP for layer in parts for part in layer)
        self.widest = max(width_of(part) for layer in parts for part in layer)

    def run(
        self, stream: Tensor, rows: Rows, turns: Floats, watched: Collection[int], first: int, stop: int, spoken: int,
        *, beside: bool = False,
    ) -> tuple[Tensor, Tensor, Kept]:  # fmt: skip
        """States that the output head reads [rows, width], logits [spoken, vocab], inputs of watched layers.

        The stream [rows, width] is run through the layers from `first` to `stop` in place: now, or `beside` the
        caller until the slots of the rows are settled.
        """
        layers, count, ends = len(self.layers), len(stream), spoken != UNFINISHED
        wanted = tuple(sorted(layer for layer in watched if first <= layer < stop))
        kept = np.empty((len(wanted) + 1, count, self.sizes.width), np.float32)  # inputs of watched layers, and states
        logits = self.shelf.take(max(spoken, 0))
        size = count, -(-max(block.slots for block in rows.blocks) // KEYS) * KEYS, torch.get_num_threads()
        room = self.rooms.pop(size, None) or self._room(*size)
        given = {"stream": stream.numpy(), "kept": kept, "states": kept[-1], "logits": logits}
        work = Work(keep=self._keep(wanted), **given, **room, soon=SOON.take())
        stages = self._course(first, stop, ends, spoken > 0)
        desks = np.zeros((1 + len(stages), DESK), np.int64)  # the first is the door
        errand = TEAM.begin(forward, desks[0], self.net, self._crowd(rows, turns), work, stages, desks)
        errand.then(partial(self._give_back, size, room))
        if beside:
            rows.spans[0].slots.settle = errand.finish
        else:
            errand.finish()
        *inputs, states = torch.from_numpy(kept).unbind()
        found = dict(zip(wanted, inputs, strict=True))
        if ends and layers in watched:
            found[layers] = states
        return states, torch.from_numpy(logits[:, : self.head.outputs]), found

    def _keep(self, wanted: tuple[int, ...]) -> IntArray:
        """Where the inputs of layers are kept, as in `Work`."""
        if wanted not in self.keeps:
            self.keeps[wanted] = np.array([wanted.index(n) if n in wanted else -1 for n in range(len(self.layers))])
        return self.keeps[wanted]

    def _course(self, *asked: int) -> IntArray:
        """The stages of a pass; the same few are asked for again and again."""
        if asked not in self.courses:
            first, stop, ends, speaks = asked
            self.courses[asked] = course(first, stop, self.active, bool(ends), bool(speaks))
        return self.courses[asked]

    def _give_back(self, size: tuple[int, int, int], room: dict[str, Any]) -> None:
        """Keep the room of a pass for others: most passes are like one before."""
        if size[0] <= TREES:
            self.rooms = {size: room} if len(self.rooms) >= ROOMS else {**self.rooms, size: room}

    def _room(self, rows: int, keys: int, workers: int) -> dict[str, Any]:
        """Memory for numbers on the way."""
        net = self.sizes
        group, strip = net.heads // net.kv_heads, STRIP if net.head_width in WIDTHS else net.head_width
        return {
            "entered": np.empty((rows, self.longest), np.float32),
            "whole": aligned(2 * rows, self.longest, dtype=np.uint8),
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

    def _crowd(self, rows: Rows, turns: Floats) -> Crowd:
        """Who sees what."""
        table, slots, runs, sights = [], [], [], []
        first = run = mark = 0
        for block, span in zip(rows.blocks, rows.spans, strict=True):
            nodes = block.since + span.rows
            planes, sizes = span.slots.buffers
            runs.append(span.slots.runs(block.length + nodes))
            slots.append(span.slots.places(range(span.start, span.start + span.rows)))
            sights.append([cut(block, window, 0, span.rows, nodes) for window in self.windows])
            table.append([
                first, span.rows, block.length, block.since, run, len(runs[-1]), mark,
                planes.data_ptr(), sizes.data_ptr(), planes.shape[2],
            ])  # fmt: skip
            first, run, mark = first + span.rows, run + len(runs[-1]), mark + span.rows * nodes
        both = list(zip(*sights, strict=True))  # by window, then by piece
        return Crowd(
            pieces=np.array(table),
            turns=turns,
            slots=joined(slots),
            runs=joined(runs),
            oldest=joined([joined([sight.oldest for sight in window])[None] for window in both]),
            seen=joined([joined([sight.seen.ravel() for sight in window])[None] for window in both]),
        )

"""The attention of one pass: which rows see which keys, and where their numbers go.

Rows of one session are handled in pieces, so that products with all keys stay small. Few rows are
multiplied by compiled code, more by the matrix library; sums are exact, so both give the same bits.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sapwood.arrays import BoolArray, IntArray
from sapwood.backends.torch.cache import Span
from sapwood.backends.torch.llama import Llama
from sapwood.backends.torch.mask import Block, tail
from sapwood.backends.torch.network import Rows
from sapwood.backends.torch.packed import attention

TOGETHER = 64  # rows whose products with all keys are held at once
FEW = 512  # rows times keys up to which compiled code is quicker than the matrix library; for one row it always is

Floats = np.ndarray[Any, np.dtype[np.float32]]


def pair(*shape: int) -> tuple[Tensor, Floats]:
    """A tensor, and the same memory as an array for compiled code."""
    tensor = torch.empty(shape)
    return tensor, tensor.numpy()


def floats(tensor: Tensor) -> Floats:
    """A float32 copy for compiled code."""
    found: Floats = tensor.detach().float().contiguous().numpy().copy()
    return found


@dataclass(frozen=True, slots=True)
class Sight:
    """Which keys rows see in layers of one window."""

    oldest: IntArray  # [rows] first committed key
    seen: BoolArray  # [rows, nodes]


class Piece:
    """Some rows of one session, for all layers of a pass."""

    def __init__(self, net: Llama, block: Block, span: Span, first: int, start: int, windows: set[int]) -> None:
        stop = min(start + TOGETHER, span.rows)
        rows, group = stop - start, net.heads // net.kv_heads
        self.rows = slice(first + start, first + stop)  # among those of the pass
        self.slots, self.length = span.slots.places(range(span.start + start, span.start + stop)), block.length
        nodes = block.since + stop  # later ones are not written yet
        self.keys = block.length + nodes
        self.sights = {window: cut(block, window, start, stop, nodes) for window in windows}
        self.planes, self.sizes = span.slots.buffers
        self.plane_array, self.size_array = self.planes.numpy(), self.sizes.numpy()
        self.runs = span.slots.runs(self.keys)
        places, kv_heads = rows * group, net.kv_heads
        self.queries, self.query_array = pair(kv_heads, places, net.head_width)
        self.sums, self.sum_array = pair(kv_heads, places, net.head_width)
        self.products, self.product_array = pair(kv_heads, places, self.keys)
        self.steps, self.results = (np.empty((kv_heads, places), np.float32) for _ in range(2))
        self.bits = np.empty(self.keys, np.int32)
        self.few = rows == 1 or rows * self.keys <= FEW
        self.near: Tensor | None = None  # all planes of the text, where it lies in one piece
        if len(self.runs) == 1:
            self.near = self.planes[:, :, self.runs[0, 0] : self.runs[0, 0] + self.keys]
        elif not self.few:
            self.copy, self.copy_array = pair(kv_heads, self.keys, net.head_width)

    def weigh(self, layer: int, window: int) -> None:
        """From queries and keys to sums of values."""
        keys, values, eyes = 2 * layer, 2 * layer + 1, self.sights[window]
        if self.few:
            attention.multiply(self.query_array, self.plane_array[keys], self.runs, self.product_array)
        else:
            torch.bmm(self.queries, self._side_by_side(keys).transpose(1, 2), out=self.products)
        attention.weigh(
            self.product_array, self.steps, self.size_array[keys : keys + 2], self.runs, self.length,
            eyes.oldest, eyes.seen, self.results, self.bits,
        )  # fmt: skip
        if self.few:
            attention.gather(self.product_array, self.plane_array[values], self.runs, self.sum_array)
        else:
            torch.bmm(self.products, self._side_by_side(values), out=self.sums)

    def _side_by_side(self, plane: int) -> Tensor:
        """Keys or values of a layer for the matrix library, [kv heads, keys, width]: copied where they lie apart."""
        if self.near is not None:
            return self.near[plane].float()
        attention.align(self.plane_array[plane], self.runs, self.copy_array)
        return self.copy


def pieces(net: Llama, rows: Rows, windows: set[int]) -> Iterator[Piece]:
    """All rows of a pass, session by session."""
    first = 0
    for block, span in zip(rows.blocks, rows.spans, strict=True):
        for start in range(0, span.rows, TOGETHER):
            yield Piece(net, block, span, first, start, windows)
        first += span.rows


def cut(block: Block, window: int, start: int, stop: int, nodes: int) -> Sight:
    """What the rows from `start` to `stop` see of the first `nodes` nodes."""
    oldest = np.zeros(stop - start, np.int64)
    if block.windowed(window):
        positions = block.length + block.depths[block.since :]
        oldest = np.clip(positions[start:stop] - window + 1, 0, block.length)
    return Sight(oldest, np.ascontiguousarray(tail(block, window)[start:stop, :nodes]))

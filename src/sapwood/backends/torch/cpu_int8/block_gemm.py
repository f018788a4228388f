"""Matrix products with weights in groups of 32 inputs: 4-bit blocks of GGUF files stay so.

A row is quantised in groups of 32 too, each with its own scale: to 15 bits where one element is so
large that 8 bits would round its neighbours coarsely, else to 8. Sums within a group are sums of
integers; groups are added in order in float32, whatever the other rows are, so a row's outputs are
the same bits in every pass.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import carray  # type: ignore[attr-defined]

from sapwood.backends.torch.cpu_int8.block_tile import (
    BITS,
    FORMS,
    GROUP,
    GROUP_BYTES,
    HALVES,
    MIN4,
    MXFP4,
    PAIR,
    ROW_LINES,
    SIGNED4,
    SPAN,
    TILES,
    block_bytes,
    min4_tile,
    mxfp4_tile,
    piece_bytes,
    signed4_tile,
    signed8_tile,
)
from sapwood.backends.torch.cpu_int8.group_rows import put_group
from sapwood.backends.torch.cpu_int8.intrinsics import BLOCK, DEEP, LINE, integers_at
from sapwood.backends.torch.cpu_int8.pointwise import F, compiled
from sapwood.backends.torch.cpu_int8.simd import power
from sapwood.backends.torch.cpu_int8.thread_team import address, aligned
from sapwood.core.array_types import FloatArray

# largest element of a group over the row's root mean square up to which 8 bits do
PEAK = 4.0
# groups and lines of a piece, and rows of a tile, by form: compiled code has no dictionaries
SPANS = tuple(SPAN[form] for form in FORMS)
LINES = tuple(piece_bytes(form) // LINE for form in FORMS)
MOST = tuple(TILES[form] for form in FORMS)
Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Halves = np.ndarray[Any, np.dtype[np.float16]]


@dataclass(frozen=True, slots=True)
class BlockStrip:
    """Some rows of a matrix, in groups of 32 inputs."""

    form: int  # of block_tile
    # uint8 [outputs, groups, 16 or 32]: with 4 bits, inputs j and j + 16 share byte j
    weights: Bytes
    scales: Halves  # [outputs, groups]
    least: Halves | None  # minima, the same

    @property
    def outputs(self) -> int:
        """Number of rows."""
        return len(self.weights)

    def exact(self) -> FloatArray:
        """The weights, float32 [outputs, inputs]."""
        whole = self.weights
        if BITS[self.form] == 4:
            whole = np.concatenate((whole & 15, whole >> 4), -1)
        scales = self.scales.astype(np.float32)[..., None]
        if self.form == MXFP4:
            found = np.array(HALVES, np.float32)[whole] * scales
        elif self.least is None:
            middle = 1 << (BITS[self.form] - 1)
            found = (whole.astype(np.float32) - np.float32(middle)) * scales
        else:
            found = whole * scales + self.least.astype(np.float32)[..., None]
        return found.reshape(self.outputs, -1)


class BlockMatrix:
    """A matrix [outputs, inputs] in the memory order of the kernels, of parts with a form each."""

    def __init__(self, inputs: int, parts: Sequence[tuple[int, int]]) -> None:
        """`parts` are forms and outputs; outputs are whole blocks but for the last part's."""
        self.inputs = inputs
        self.outputs = sum(outputs for _, outputs in parts)
        self.groups = -(-inputs // PAIR) * PAIR // GROUP
        self.depth = self.groups * GROUP // DEEP  # in fours of inputs
        forms = [form for form, outputs in parts for _ in range(-(-outputs // BLOCK))]
        self.blocks = len(forms)
        four = sum(BITS[form] == 4 for form in forms)
        self.bits = 4 if 2 * four > self.blocks else 8  # of most weights
        sizes = [block_bytes(form, self.groups) for form in forms]
        self.bytes = aligned(sum(sizes), dtype=np.uint8)
        starts = np.cumsum([0, *sizes])
        # address and form of each block; one more row, as that behind the last is prefetched
        self.table = np.array(
            [
                [address(self.bytes) + int(start), form]
                for start, form in zip(starts[:-1], forms, strict=True)
            ]
            + [[address(self.bytes), forms[0]]]
        )
        self._starts = starts
        # arguments of compiled code, as many as those of an int8 matrix
        self.where = np.array([address(self.table), 0, 0, self.blocks, self.depth])

    def put(self, start: int, strip: BlockStrip) -> None:
        """Write outputs from a block boundary."""
        blocks = -(-strip.outputs // BLOCK)
        weights, steps = self._views(start // BLOCK, blocks, strip.form)
        fours = np.ascontiguousarray(strip.weights).view(np.int32)
        given = self._padded(fours, blocks).reshape(blocks, BLOCK, *weights.shape[1:4])
        weights[...] = given.transpose(0, 2, 3, 4, 1)
        both = [strip.scales] if strip.least is None else [strip.scales, strip.least]
        pairs = self._padded(np.stack(both, -1), blocks).reshape(blocks, BLOCK, -1, 2)
        steps[...] = pairs.transpose(0, 2, 3, 1)

    def _views(self, first: int, blocks: int, form: int) -> tuple[Any, Halves]:
        """Weights, int32 [blocks, pieces, span, lines, BLOCK], and steps of some blocks.

        Steps are scales and minima, or scales of two groups: float16 [blocks, pieces, 2, BLOCK].
        """
        here = int(self._starts[first])
        size = blocks * block_bytes(form, self.groups)
        pieces = self.bytes[here : here + size].reshape(blocks, -1, piece_bytes(form))
        shape = pieces.shape[:2]
        weights = pieces[..., LINE:].view(np.int32).reshape(*shape, SPAN[form], -1, BLOCK)
        return weights, pieces[..., :LINE].view(np.float16).reshape(*shape, 2, BLOCK)

    def _padded(self, values: Any, blocks: int) -> Any:
        """Values [outputs, groups, n], with zeros up to whole blocks and pairs of groups."""
        missing = (blocks * BLOCK - len(values), self.groups - values.shape[1], 0)
        return np.pad(values, [(0, count) for count in missing]) if any(missing) else values

    def exact(self) -> FloatArray:
        """The weights, float32 [outputs, inputs]."""
        forms = self.table[:-1, 1].tolist()
        found = [self._strip(block, form).exact() for block, form in enumerate(forms)]
        return np.concatenate(found)[: self.outputs, : self.inputs]

    def _strip(self, block: int, form: int) -> BlockStrip:
        """One block as it was written."""
        weights, steps = self._views(block, 1, form)
        bytes_ = np.ascontiguousarray(weights[0].transpose(3, 0, 1, 2)).view(np.uint8)
        both = steps[0].transpose(2, 0, 1)
        least = both[..., 1] if form == MIN4 else None
        scales = both[..., 0] if form == MIN4 else both.reshape(BLOCK, -1)
        return BlockStrip(form, bytes_.reshape(BLOCK, self.groups, -1), scales, least)


# -------------------------------------------------------------------------------------------- rows
@compiled
def put_groups(row: Any, out: Any) -> None:
    """Quantise a row by groups: out [ROW_LINES, stride] uint8."""
    inputs = row.shape[0]
    bound = F(PEAK) * np.sqrt(power(row.ctypes.data, inputs) / F(inputs))
    end = -(-inputs // PAIR) * PAIR
    for group in range(end // GROUP):
        start = group * GROUP
        here = out.ctypes.data + group * GROUP_BYTES
        put_group(row.ctypes.data + 4 * start, inputs - start, bound, here)


# ---------------------------------------------------------------------------------------- products
@compiled
def multiply_groups(
    where: Any, rows: Any, count: int, start: int, stop: int, out: Any, after: int = -1
) -> None:
    """Multiply rows [ROW_LINES * rows, stride] by blocks start to stop: out [rows, blocks * 16].

    `after` is the block to prefetch at the end, if it is not `stop`.
    """
    table = carray(integers_at(where[0]), (where[3] + 1, 2))
    groups = where[4] * DEEP // GROUP
    stride = ROW_LINES * rows.shape[1]
    apart = 4 * out.shape[1]
    for block in range(start, stop):
        following = block + 1 if block + 1 < stop or after < 0 else after
        weights = table[block, 0]
        form = table[block, 1]
        ahead = table[following, 0]
        most = MOST[form]
        # the next block is prefetched while all tiles of this one are run
        pace = LINE // -(-count // most)
        for row in range(0, count, most):
            here = rows.ctypes.data + row * stride
            there = out.ctypes.data + row * apart + 4 * block * BLOCK
            left = count - row
            if form == MIN4:
                min4_tile(left, weights, groups, here, stride, there, apart, ahead, pace)
            elif form == SIGNED4:
                signed4_tile(left, weights, groups, here, stride, there, apart, ahead, pace)
            elif form == MXFP4:
                mxfp4_tile(left, weights, groups, here, stride, there, apart, ahead, pace)
            else:
                signed8_tile(left, weights, groups, here, stride, there, apart, ahead, pace)
            ahead += pace * (groups // SPANS[form] * LINES[form])


@compiled
def round_groups(rows: Any, out: Any) -> None:
    """Quantise rows [rows, inputs] by groups: out [ROW_LINES * rows, stride]."""
    for r in range(rows.shape[0]):
        put_groups(rows[r], out[ROW_LINES * r : ROW_LINES * (r + 1)])


def group_products(weights: BlockMatrix, rows: Any) -> Any:
    """Outputs [rows, outputs] of rows, on this thread alone."""
    count = len(rows)
    whole = aligned(ROW_LINES * count, weights.depth * DEEP, dtype=np.uint8)
    round_groups(rows, whole)
    out = np.empty((count, weights.blocks * BLOCK), np.float32)
    multiply_groups(weights.where, whole, count, 0, weights.blocks, out)
    return out[:, : weights.outputs]

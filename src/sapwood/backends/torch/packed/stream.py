"""Eight-bit products made for streaming: weights lie in the order in which they are read, once for all rows.

Outputs go in blocks of sixteen, inputs in fours: [blocks, inputs / 4, 16, 4] bytes. Rows are whole numbers
from 1 to 255 around 128; what the 128 adds is taken off with the sums of the weights. Sums are exact
in any order, and rounding and scaling are those of FBGEMM's layers, so both give the same bits.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from sapwood.backends.torch.packed.kernels import GRID, F, compiled, inlined
from sapwood.backends.torch.packed.machine import (
    BLOCK,
    DEEP,
    LANES,
    LINE,
    address,
    fine_2,
    fine_4,
    fine_6,
    fine_8,
    tile_1,
    tile_2,
    tile_3,
    tile_4,
    tile_5,
    tile_6,
    tile_7,
    tile_8,
)
from sapwood.backends.torch.packed.vectors import once

STEP, ZERO = 1 / GRID, 128  # of the grid that rows are rounded to: 1..255 stand for -1..1
ALIGN = 64  # bytes of a line of the caches


def available() -> bool:
    """True where this processor has the instruction."""
    return LANES > 0


def aligned(*shape: int, dtype: Any = np.float32) -> np.ndarray[Any, Any]:
    """An array of zeros that begins with a line of the caches."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    room = np.zeros(size + ALIGN, np.uint8)
    start = -address(room) % ALIGN
    found: np.ndarray[Any, Any] = room[start : start + size].view(dtype).reshape(shape)
    return found


class Streamed:
    """A matrix [outputs, inputs] in whole numbers, ready to be streamed."""

    def __init__(self, outputs: int, inputs: int) -> None:
        self.outputs, self.inputs = outputs, inputs
        self.blocks, self.depth = -(-self.outputs // BLOCK), -(-self.inputs // DEEP)
        self.bytes = aligned(self.blocks, self.depth, BLOCK, DEEP, dtype=np.int8)
        self.scales, self.zeros = aligned(self.blocks * BLOCK), aligned(self.blocks * BLOCK, dtype=np.int32)
        # what compiled code is told: where the three begin, blocks and depth
        self.where = np.array([*map(address, (self.bytes, self.scales, self.zeros)), self.blocks, self.depth])

    def put(self, start: int, whole: Tensor, scales: Tensor) -> None:
        """Take some of the outputs, from the beginning of a block on: int8 [outputs, inputs] and their scales."""
        stop, first, blocks = start + len(whole), start // BLOCK, -(-len(whole) // BLOCK)
        padded = torch.nn.functional.pad(whole, (0, -self.inputs % DEEP, 0, -len(whole) % BLOCK)).contiguous()
        fours = padded.view(torch.int32).view(blocks, BLOCK, self.depth)  # DEEP bytes at a time
        target = torch.from_numpy(self.bytes.view(np.int32)[first : first + blocks, ..., 0])
        target.copy_(fours.transpose(1, 2))
        self.scales[start:stop] = np.float32(STEP) * scales.float().numpy()
        self.zeros[start:stop] = ZERO * whole.sum(1, dtype=torch.int32).numpy()

    def whole(self) -> Tensor:
        """The whole numbers, int8 [outputs, inputs]."""
        rows = torch.from_numpy(self.bytes).transpose(1, 2).reshape(self.blocks * BLOCK, self.depth * DEEP)
        return rows[: self.outputs, : self.inputs]

    def exact(self) -> Tensor:
        """The weights, float32 [outputs, inputs]."""
        steps: Tensor = torch.from_numpy(self.scales[: self.outputs, None] / np.float32(STEP))
        return self.whole() * steps


# -------------------------------------------------------------------------------------------- rows
@inlined
def near(value: Any) -> Any:
    """A number in [-1, 1] on the grid; as in FBGEMM, one rounding before it becomes whole, after 128 was added."""
    return np.uint8(np.int32(np.rint(once(value, F(GRID), F(ZERO)))))


@compiled
def put(row: Any, out: Any) -> None:
    """A row in [-1, 1] on the grid: out [1, inputs] uint8."""
    for i in range(row.shape[0]):
        out[0, i] = near(row[i])


@compiled
def put_fine(row: Any, out: Any) -> None:
    """A row in [-1, 1] on the grid, and what is left of it on a finer one: out [2, inputs] uint8."""
    for i in range(row.shape[0]):
        held = np.rint(row[i] * F(GRID)) / F(GRID)
        out[0, i] = near(held)
        out[1, i] = near((row[i] - held) * F(2 * GRID))


# ---------------------------------------------------------------------------------------- products
@compiled
def multiply(where: Any, rows: Any, count: int, start: int, stop: int, out: Any, after: int = -1) -> None:
    """Products of the first rows, uint8 [rows, stride], and the blocks from start to stop: out [rows, blocks * 16].

    The block `after` is the one that is probably wanted next, if it is not `stop`.
    """
    depth, stride, apart = where[4], rows.shape[1], 4 * out.shape[1]
    size = depth * LINE
    pace = LINE // -(-count // 8)  # the next block is fetched while all tiles of this one are run
    for block in range(start, stop):
        weights, row = where[0] + block * size, 0
        scales, zeros = where[1] + 4 * block * BLOCK, where[2] + 4 * block * BLOCK
        ahead = weights + size if block + 1 < stop or after < 0 else where[0] + after * size
        while row < count:
            left, here = count - row, rows.ctypes.data + row * stride
            there = out.ctypes.data + row * apart + 4 * block * BLOCK
            if left >= 8:
                tile_8(weights, scales, zeros, depth, here, stride, there, apart, ahead, pace)
            elif left == 7:
                tile_7(weights, scales, zeros, depth, here, stride, there, apart, ahead, pace)
            elif left == 6:
                tile_6(weights, scales, zeros, depth, here, stride, there, apart, ahead, pace)
            elif left == 5:
                tile_5(weights, scales, zeros, depth, here, stride, there, apart, ahead, pace)
            elif left == 4:
                tile_4(weights, scales, zeros, depth, here, stride, there, apart, ahead, pace)
            elif left == 3:
                tile_3(weights, scales, zeros, depth, here, stride, there, apart, ahead, pace)
            elif left == 2:
                tile_2(weights, scales, zeros, depth, here, stride, there, apart, ahead, pace)
            else:
                tile_1(weights, scales, zeros, depth, here, stride, there, apart, ahead, pace)
            row += min(left, 8)
            ahead += pace * depth


@compiled
def multiply_fine(where: Any, rows: Any, count: int, start: int, stop: int, out: Any, after: int = -1) -> None:
    """`multiply` for rows in two parts, uint8 [2 * rows, stride]."""
    depth, stride, apart = where[4], rows.shape[1], 4 * out.shape[1]
    size = depth * LINE
    pace = LINE // -(-count // 4)
    for block in range(start, stop):
        weights, row = where[0] + block * size, 0
        scales, zeros = where[1] + 4 * block * BLOCK, where[2] + 4 * block * BLOCK
        ahead = weights + size if block + 1 < stop or after < 0 else where[0] + after * size
        while row < count:
            left, here = count - row, rows.ctypes.data + 2 * row * stride
            there = out.ctypes.data + row * apart + 4 * block * BLOCK
            if left >= 4:
                fine_8(weights, scales, zeros, depth, here, stride, there, apart, ahead, pace)
            elif left == 3:
                fine_6(weights, scales, zeros, depth, here, stride, there, apart, ahead, pace)
            elif left == 2:
                fine_4(weights, scales, zeros, depth, here, stride, there, apart, ahead, pace)
            else:
                fine_2(weights, scales, zeros, depth, here, stride, there, apart, ahead, pace)
            row += min(left, 4)
            ahead += pace * depth


@compiled
def round_rows(rows: Any, fine: bool, out: Any) -> None:
    """Rows in [-1, 1], [rows, inputs], on the grid."""
    for r in range(rows.shape[0]):
        if fine:
            put_fine(rows[r], out[2 * r : 2 * r + 2])
        else:
            put(rows[r], out[r : r + 1])


def products(weights: Streamed, rows: Any, fine: bool) -> Any:
    """Products of rows scaled to [-1, 1], [rows, outputs], by this thread alone."""
    count = len(rows)
    whole = np.zeros(((1 + fine) * count, weights.depth * DEEP), np.uint8)
    round_rows(rows, fine, whole)
    out = np.empty((count, weights.blocks * BLOCK), np.float32)
    (multiply_fine if fine else multiply)(weights.where, whole, count, 0, weights.blocks, out)
    return out[:, : weights.outputs]

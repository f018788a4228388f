"""Int8 matrix products for few rows: weights are stored in the order in which they are read.

Outputs go in blocks of sixteen, inputs in fours: [blocks, inputs / 4, 16, 4] bytes. Rows are
integers from 1 to 255 around a zero point of 128, which is subtracted with the sums of the weights,
or from the rows where the target multiplies signed bytes.
Sums are exact in any order, and rounding and scaling are those of FBGEMM's layers, so both give the
same bits.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from sapwood.backends.torch.cpu_int8.cpu_target import TARGET
from sapwood.backends.torch.cpu_int8.dot_products import DOTS
from sapwood.backends.torch.cpu_int8.intrinsics import (
    BLOCK,
    DEEP,
    FINE_TILE,
    LINE,
    TILE,
    fine_tile,
    tile,
)
from sapwood.backends.torch.cpu_int8.pointwise import GRID, F, compiled, inlined
from sapwood.backends.torch.cpu_int8.simd import once
from sapwood.backends.torch.cpu_int8.thread_team import address, aligned

# of the input quantisation: 1..255 stand for -1..1
STEP = 1 / GRID
ZERO = 128
SHIFT = DOTS.shift  # subtracted from the integers of rows


def available() -> bool:
    """True if this processor runs our kernels: x86 with AVX2, AVX-VNNI or AVX-512 VNNI."""
    return TARGET is not None


class StreamedMatrix:
    """An int8 matrix [outputs, inputs] in the memory order of the kernels."""

    def __init__(self, outputs: int, inputs: int) -> None:
        self.outputs = outputs
        self.inputs = inputs
        self.blocks = -(-self.outputs // BLOCK)
        self.depth = -(-self.inputs // DEEP)
        self.bytes = aligned(self.blocks, self.depth, BLOCK, DEEP, dtype=np.int8)
        self.scales = aligned(self.blocks * BLOCK)
        self.zeros = aligned(self.blocks * BLOCK, dtype=np.int32)
        # arguments of compiled code: three addresses, blocks and depth
        self.where = np.array(
            [*map(address, (self.bytes, self.scales, self.zeros)), self.blocks, self.depth]
        )

    def arrays(self) -> dict[str, np.ndarray[Any, Any]]:
        """The arrays of the matrix by name, to be saved or filled."""
        return {"bytes": self.bytes, "scales": self.scales, "zeros": self.zeros}

    def put(self, start: int, whole: Tensor, scales: Tensor) -> None:
        """Write outputs from a block boundary: int8 [outputs, inputs] and their scales."""
        stop = start + len(whole)
        first = start // BLOCK
        blocks = -(-len(whole) // BLOCK)
        padded = torch.nn.functional.pad(
            whole, (0, -self.inputs % DEEP, 0, -len(whole) % BLOCK)
        ).contiguous()
        fours = padded.view(torch.int32).view(blocks, BLOCK, self.depth)  # DEEP bytes at a time
        target = torch.from_numpy(self.bytes.view(np.int32)[first : first + blocks, ..., 0])
        target.copy_(fours.transpose(1, 2))
        self.scales[start:stop] = np.float32(STEP) * scales.float().numpy()
        self.zeros[start:stop] = ZERO * whole.sum(1, dtype=torch.int32).numpy()

    def whole(self) -> Tensor:
        """The integers, int8 [outputs, inputs]."""
        rows = (
            torch.from_numpy(self.bytes)
            .transpose(1, 2)
            .reshape(self.blocks * BLOCK, self.depth * DEEP)
        )
        return rows[: self.outputs, : self.inputs]

    def exact(self) -> Tensor:
        """The weights, float32 [outputs, inputs]."""
        steps: Tensor = torch.from_numpy(self.scales[: self.outputs, None] / np.float32(STEP))
        return self.whole() * steps


# -------------------------------------------------------------------------------------------- rows
@inlined
def near(value: Any) -> Any:
    """Quantise a number in [-1, 1]: multiply-add with one rounding, then rint, as FBGEMM."""
    return np.uint8(np.int32(np.rint(once(value, F(GRID), F(ZERO)))) - np.int32(SHIFT))


@compiled
def put(row: Any, out: Any) -> None:
    """Quantise a row in [-1, 1]: out [1, inputs] uint8."""
    for i in range(row.shape[0]):
        out[0, i] = near(row[i])


@compiled
def put_fine(row: Any, out: Any) -> None:
    """Quantise a row in [-1, 1] and its remainder: out [2, inputs] uint8."""
    for i in range(row.shape[0]):
        held = np.rint(row[i] * F(GRID)) / F(GRID)
        out[0, i] = near(held)
        out[1, i] = near((row[i] - held) * F(2 * GRID))


# ---------------------------------------------------------------------------------------- products
@inlined
def run_blocks(
    where: Any, rows: Any, count: int, start: int, stop: int, out: Any, after: int,
    kernel: Any, most: int, split: int,
) -> None:  # fmt: skip
    """Run a kernel for `most` rows, of `split` rows of bytes each, over blocks start to stop."""
    depth = where[4]
    stride = rows.shape[1]
    apart = 4 * out.shape[1]
    size = depth * LINE
    # the next block is fetched while all tiles of this one are run
    pace = LINE // -(-count // most)
    for block in range(start, stop):
        weights = where[0] + block * size
        scales = where[1] + 4 * block * BLOCK
        zeros = where[2] + 4 * block * BLOCK
        ahead = weights + size if block + 1 < stop or after < 0 else where[0] + after * size
        for row in range(0, count, most):
            here = rows.ctypes.data + split * row * stride
            there = out.ctypes.data + row * apart + 4 * block * BLOCK
            kernel(
                count - row, weights, scales, zeros, depth, here, stride, there, apart, ahead, pace
            )
            ahead += pace * depth


@compiled
def multiply(
    where: Any, rows: Any, count: int, start: int, stop: int, out: Any, after: int = -1
) -> None:
    """Multiply rows, uint8 [rows, stride], by blocks start to stop: out [rows, blocks * 16].

    `after` is the block to prefetch at the end, if it is not `stop`.
    """
    run_blocks(where, rows, count, start, stop, out, after, tile, TILE, 1)


@compiled
def multiply_fine(
    where: Any, rows: Any, count: int, start: int, stop: int, out: Any, after: int = -1
) -> None:
    """`multiply` for split rows, uint8 [2 * rows, stride]."""
    run_blocks(where, rows, count, start, stop, out, after, fine_tile, FINE_TILE, 2)


@compiled
def round_rows(rows: Any, fine: bool, out: Any) -> None:
    """Quantise rows in [-1, 1], [rows, inputs]."""
    for r in range(rows.shape[0]):
        if fine:
            put_fine(rows[r], out[2 * r : 2 * r + 2])
        else:
            put(rows[r], out[r : r + 1])


def products(weights: StreamedMatrix, rows: Any, fine: bool) -> Any:
    """Outputs [rows, outputs] of rows scaled to [-1, 1], on this thread alone."""
    count = len(rows)
    whole = np.zeros(((1 + fine) * count, weights.depth * DEEP), np.uint8)
    round_rows(rows, fine, whole)
    out = np.empty((count, weights.blocks * BLOCK), np.float32)
    (multiply_fine if fine else multiply)(weights.where, whole, count, 0, weights.blocks, out)
    return out[:, : weights.outputs]

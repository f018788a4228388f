"""Quantises floats to the blocks of `block_gemm`: 4 bits with a minimum, or 8 bits."""

from typing import Any

import numpy as np

from sapwood.backends.torch.cpu_int8.block_gemm import BlockStrip, Bytes
from sapwood.backends.torch.cpu_int8.block_tile import GROUP, MIN4, MXFP4, SIGNED8
from sapwood.core.array_types import FloatArray

MOST4, MOST8 = 15, 127
MIDDLE8 = 128
NARROWER = (1.0, 0.95, 0.9, 0.85, 0.8)  # shares of the range that are tried for 4 bits
EXPONENT_BIAS = 127  # of MXFP4
LARGEST_POWER = 15  # of two in float16
TINY = np.float32(2.0**-24)  # smallest step in float16


def from_mxfp4(blocks: Bytes, exponents: Bytes) -> BlockStrip:
    """MXFP4 blocks as they are: [outputs, groups, 16], neighbours in a byte; [outputs, groups].

    The exponents of weights that float16 has no steps for are clipped: none is that large.
    """
    codes = np.stack((blocks & 15, blocks >> 4), -1).reshape(*blocks.shape[:2], GROUP)
    half_group = GROUP // 2
    weights = codes[..., :half_group] | codes[..., half_group:] << 4
    powers = np.minimum(exponents.astype(np.int32) - EXPONENT_BIAS - 1, LARGEST_POWER)
    return BlockStrip(MXFP4, weights, np.ldexp(np.float32(1.0), powers).astype(np.float16), None)


def grouped(rows: FloatArray) -> FloatArray:
    """Rows [outputs, inputs] in groups, padded with zeros: [outputs, groups, 32]."""
    missing = -rows.shape[1] % GROUP
    whole = np.pad(np.asarray(rows, np.float32), ((0, 0), (0, missing))) if missing else rows
    return np.asarray(whole, np.float32).reshape(len(rows), -1, GROUP)


def to_eight(rows: FloatArray) -> BlockStrip:
    """Rows [outputs, inputs] in 8 bits, with a scale for each group."""
    groups = grouped(rows)
    largest = np.abs(groups).max(-1)
    scales = np.maximum(largest / MOST8, TINY).astype(np.float16)
    near = np.rint(groups / scales.astype(np.float32)[..., None])
    whole = (np.clip(near, -MOST8, MOST8) + MIDDLE8).astype(np.uint8)
    return BlockStrip(SIGNED8, whole, scales, None)


def to_four(rows: FloatArray) -> BlockStrip:
    """Rows [outputs, inputs] in 4 bits, with a scale and a minimum for each group.

    Of some ranges around the middle of a group, the one with the least square error is taken:
    clipping the outermost weights may round the others better.
    """
    groups = grouped(rows)
    low, high = groups.min(-1), groups.max(-1)
    middle, half = (high + low) / 2, (high - low) / 2
    best: Any = None
    for share in NARROWER:
        scales = np.maximum(2 * share * half / MOST4, TINY).astype(np.float16)
        least = (middle - share * half).astype(np.float16)
        step = scales.astype(np.float32)[..., None]
        start = least.astype(np.float32)[..., None]
        whole = np.clip(np.rint((groups - start) / step), 0, MOST4)
        error = np.square(whole * step + start - groups).sum(-1)
        found = (error, whole.astype(np.uint8), scales, least)
        best = found if best is None else better(found, best)
    _, whole, scales, least = best
    half_group = GROUP // 2
    return BlockStrip(MIN4, whole[..., :half_group] | whole[..., half_group:] << 4, scales, least)


def better(new: tuple[Any, ...], old: tuple[Any, ...]) -> tuple[Any, ...]:
    """Of two quantisations, error first, the better one for each group."""
    wins = new[0] < old[0]
    return tuple(
        np.where(wins[..., None] if left.ndim > wins.ndim else wins, left, right)
        for left, right in zip(new, old, strict=True)
    )

"""Products with weights in 8 or 4 bits, which are restored in registers.

A weight is restored to the number format of the rows, and products are summed in float32 in the
order of the inputs, as those of plain weights are: a row has the same bits in every pass.
"""
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
# mypy: disallow-untyped-decorators=False, disallow-untyped-calls=False

from dataclasses import replace
from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from sapwood.backends.torch import quant_weight
from sapwood.backends.torch.cuda.kernels.device_limits import shared_limit
from sapwood.backends.torch.cuda.kernels.launch import WIDEN, launch_next_kernel
from sapwood.backends.torch.cuda.kernels.tile_configs import (
    WHOLE_STEP,
    WIDE_TILE,
    TileConfig,
    plan_of,
)
from sapwood.backends.torch.quant_weight import QuantWeight, block_of

FLOATS = tl.constexpr(quant_weight.FLOATS)
ROWS8 = tl.constexpr(quant_weight.ROWS8)
MINIMUM4 = tl.constexpr(quant_weight.MINIMUM4)
ZERO8 = tl.constexpr(quant_weight.ZERO8)


@triton.jit
def quant_product(
    x, weight, scales, rows, lines, m, n, k, first, last,
    form: tl.constexpr, group: tl.constexpr, even: tl.constexpr,
    tile_m: tl.constexpr, tile_n: tl.constexpr, tile_k: tl.constexpr, soon: tl.constexpr,
):  # fmt: skip
    """Rows of x times lines of a quantised weight [n, k] over the inputs first..last.

    The next kernel is launched before the loop if `soon`, else after it.
    """
    if soon:
        launch_next_kernel()
    if form == ROWS8:
        sums = row_sums(x, weight, rows, lines, m, k, first, last, even, tile_m, tile_n, tile_k)
        sums *= tl.load(scales + lines)[None, :]
    else:
        sums = block_sums(
            x, weight, scales, rows, lines, m, n, k, first, last,
            form, group, even, tile_m, tile_n, tile_k,
        )  # fmt: skip
    if not soon:
        launch_next_kernel()
    return sums


@triton.jit
def row_sums(
    x, weight, rows, lines, m, k, first, last,
    even: tl.constexpr, tile_m: tl.constexpr, tile_n: tl.constexpr, tile_k: tl.constexpr,
):  # fmt: skip
    """Sums with weights in 8 bits [n, k], before their scales."""
    inputs = first + tl.arange(0, tile_k)
    xs = x + rows[:, None] * k + inputs[None, :]
    ws = weight + lines[None, :].to(tl.int64) * k + inputs[:, None]
    held = rows[:, None] < m
    sums = tl.zeros((tile_m, tile_n), tl.float32)
    for start in range(first, last, tile_k):
        if even:
            a = tl.load(xs, mask=held, other=0.0)
            b = tl.load(ws)
        else:
            inside = start + tl.arange(0, tile_k) < last
            a = tl.load(xs, mask=held & inside[None, :], other=0.0)
            b = tl.load(ws, mask=inside[:, None], other=0.0)
        sums = added(a, b.to(tl.float16).to(x.dtype.element_ty), sums)
        xs += tile_k
        ws += tile_k
    return sums


@triton.jit
def block_sums(
    x, weight, scales, rows, lines, m, n, k, first, last,
    form: tl.constexpr, group: tl.constexpr, even: tl.constexpr,
    tile_m: tl.constexpr, tile_n: tl.constexpr, tile_k: tl.constexpr,
):  # fmt: skip
    """Sums with weights in blocks [blocks, n, bytes], each with a scale for its group."""
    block: tl.constexpr = 128 if group % 128 == 0 else 64 if group % 64 == 0 else 32
    part: tl.constexpr = block if form == ZERO8 else block // 2  # inputs of a product
    inputs = tl.arange(0, part)
    xs = x + rows[:, None] * k + inputs[None, :]
    ws = weight + lines[None, :].to(tl.int64) * part + inputs[:, None]
    held = rows[:, None] < m
    sums = tl.zeros((tile_m, tile_n), tl.float32)
    for start in range(first, last, tile_k):
        for step in tl.static_range(tile_k // block):
            at = start + step * block
            if step * block % group == 0:  # else the group is that of the block before
                lot = at // group * n + lines
                if even:
                    pair = tl.load(scales + lot)
                else:
                    pair = tl.load(scales + lot, mask=at < last, other=0)
                scale = half_of(pair)
                shift = half_of(pair >> 16)
            held_block = ws + (at // block).to(tl.int64) * n * part
            if even:
                numbers = tl.load(held_block)
            else:
                numbers = tl.load(held_block, mask=at < last, other=0)
            a = row_values(xs, at, inputs, held, last, even)
            if form == ZERO8:
                b = restored(numbers, scale, shift, form, x.dtype.element_ty)
            else:
                b = restored(numbers & 15, scale, shift, form, x.dtype.element_ty)
            sums = added(a, b, sums)
            if form != ZERO8:
                a = row_values(xs, at + part, inputs, held, last, even)
                b = restored(numbers >> 4, scale, shift, form, x.dtype.element_ty)
                sums = added(a, b, sums)
    return sums


@triton.jit
def half_of(words):
    """The float16 in the low halves of words, as float32."""
    return words.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def row_values(xs, at, inputs, held, last, even: tl.constexpr):
    """Inputs of the rows from `at` on, zero beyond the last."""
    if even:
        found = tl.load(xs + at, mask=held, other=0.0)
    else:
        found = tl.load(xs + at, mask=held & (at + inputs < last)[None, :], other=0.0)
    return found


@triton.jit
def restored(numbers, scale, shift, form: tl.constexpr, dtype: tl.constexpr):
    """Weights [inputs, outputs] of their numbers, in the number format of the rows."""
    wide = numbers.to(tl.float32)
    if form == MINIMUM4:
        made = wide * scale[None, :] + shift[None, :]
    else:
        made = (wide - shift[None, :]) * scale[None, :]
    return made.to(dtype)


@triton.jit
def added(a, b, sums):
    """The sums with the products of rows and weights added."""
    if WIDEN:
        a = a.to(tl.float32)
        b = b.to(tl.float32)
    return tl.dot(a, b, sums, input_precision="ieee")


class WeightInput(NamedTuple):
    """A weight as a kernel takes it: plain, or with scales."""

    data: Tensor
    scales: Tensor
    form: int
    group: int

    @classmethod
    def by(cls, weight: Tensor | QuantWeight) -> "WeightInput":
        """The arguments of a weight; what it lacks is an unused tensor."""
        if isinstance(weight, Tensor):
            return cls(weight, weight, quant_weight.FLOATS, 0)
        return cls(weight.data, weight.scales, weight.form, weight.group)


def kind_of(kind: str, weight: Tensor | QuantWeight) -> str:
    """The kind of a product with its layout of weights, under which its tiles are known."""
    return kind if isinstance(weight, Tensor) else f"{kind}-{weight.kind}"


def plan_for(
    m: int, weight: Tensor | QuantWeight, kind: str, plan: TileConfig | None = None
) -> TileConfig:
    """The given plan, or the one for so many rows, with steps that fit the weight's groups."""
    n, k = weight.shape
    plan = plan or plan_of(m, n, k, kind_of(kind, weight))
    if isinstance(weight, Tensor):
        return plan
    inputs = plan.inputs if not weight.group else steps_of(plan, weight)
    warps = max(plan.warps, 8) if plan.rows * plan.outputs >= WIDE_TILE else plan.warps
    rows = min(plan.rows, 64)  # more would take too many registers beside the restored weights
    # which take shared memory too
    each, room = 2 * inputs * (rows + plan.outputs), shared_limit() - 2 * inputs * plan.outputs
    stages = max(2, min(plan.stages, room // each))
    return replace(plan, rows=rows, inputs=inputs, warps=warps, stages=stages)


def steps_of(plan: TileConfig, weight: QuantWeight) -> int:
    """Inputs of a step that begins with a group or lies within one."""
    inputs = max(plan.inputs, block_of(weight.group))
    if WHOLE_STEP % weight.group:  # parts of the inputs begin inside of groups
        inputs = min(inputs, WHOLE_STEP)
        while weight.group % inputs:
            inputs //= 2
    return inputs

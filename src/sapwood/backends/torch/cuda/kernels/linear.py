"""Projections of a few rows as Triton kernels, fused with norm, bias, residual and gate.

A program computes one tile of outputs for all rows of a tile: it walks the inputs in steps, sums in
float32 and finishes the tile in its registers. A norm before it is shared with the kernel that made
the rows.

The output of a row has the same bits for any number of rows: inputs are added up in their order,
and in as many parts for one row as for many.
"""
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
# mypy: disallow-untyped-decorators=False, disallow-untyped-calls=False

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from sapwood.backends.torch.cuda.kernels import pointwise
from sapwood.backends.torch.cuda.kernels.activations import IS_GELU, open_gate, soft_cap
from sapwood.backends.torch.cuda.kernels.exact_sum import real, whole
from sapwood.backends.torch.cuda.kernels.launch import (
    WIDEN,
    launch_next_kernel,
    options,
    or_other,
    wait,
)
from sapwood.backends.torch.cuda.kernels.prenorm import LEFT, PrenormRows
from sapwood.backends.torch.cuda.kernels.quant_product import (
    FLOATS,
    WeightInput,
    plan_for,
    quant_product,
)
from sapwood.backends.torch.cuda.kernels.tile_configs import TileConfig, share_of
from sapwood.backends.torch.cuda.kernels.weight_prefetch import fetch
from sapwood.backends.torch.quant_weight import QuantWeight

PARTS = 1 << 22  # float32 sums that programs may leave to each other, at first


@triton.jit
def product(
    x, weight, rows, lines, m, k, first, last,
    even: tl.constexpr, tile_m: tl.constexpr, tile_n: tl.constexpr, tile_k: tl.constexpr,
    soon: tl.constexpr,
):  # fmt: skip
    """Rows of x times lines of the weight over the inputs first..last, [tile_m, tile_n].

    The next kernel is launched before the loop if `soon`, else after it.
    """
    if soon:
        launch_next_kernel()
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
        if WIDEN:
            a = a.to(tl.float32)
            b = b.to(tl.float32)
        sums = tl.dot(a, b, sums, input_precision="ieee")
        xs += tile_k
        ws += tile_k
    if not soon:
        launch_next_kernel()
    return sums


@triton.jit
def left(squares, rows, m, parts, pace, tile_p: tl.constexpr):
    """Load the partial sums of squares that the kernel before has written, [parts, rows]."""
    part = tl.arange(0, tile_p)
    there = (part < parts)[:, None] & (rows < m)[None, :]
    return tl.load(squares + part[:, None] * pace + rows[None, :], there, 0)


@triton.jit
def sizes(squared, k, eps, lift, dtype: tl.constexpr):
    """Reciprocal RMS of rows that were already multiplied by the norm's weight, [rows]."""
    return lift * tl.rsqrt(real(tl.sum(squared, 0), dtype) / k + eps)


@triton.jit
def gathered(sums, parts, counters, tile, part, m, rows, columns, width, split: tl.constexpr):
    """Sum of all parts, in their order, in the last program to arrive; True there."""
    place = parts + rows[:, None] * width + columns[None, :]
    held = (rows[:, None] < m) & (columns[None, :] < width)
    tl.store(place + part * m * width, sums, mask=held)
    tl.debug_barrier()
    done = tl.atomic_add(counters + tile, 1, sem="acq_rel") == split - 1
    if done:
        tl.store(counters + tile, 0)
        sums = tl.zeros_like(sums)
        for other in range(split):
            sums += tl.load(place + other * m * width, mask=held, other=0.0, cache_modifier=".cg")
    return sums, done


@triton.jit
def finish(
    sums, out, scaled, squares, scale, rows, columns, part, m, n, pace, leaves: tl.constexpr
):
    """Store sums; for a following norm also rows times its scale [columns], and squares."""
    held = (rows[:, None] < m) & (columns[None, :] < n)
    place = rows[:, None] * n + columns[None, :]
    made = sums.to(out.dtype.element_ty)
    tl.store(out + place, made, held)
    if leaves:
        wide = tl.where(held, made.to(tl.float32), 0.0)
        tl.store(
            scaled + place, (wide * scale.to(tl.float32)[None, :]).to(out.dtype.element_ty), held
        )
        squared = whole(wide * wide, out.dtype.element_ty)
        tl.store(squares + part * pace + rows, tl.sum(squared, 1), rows < m)


@triton.jit(do_not_specialize=["m", "old_parts"])
def _project(
    x, weight, out, bias, residual, old_squares, norm, scaled, squares, parts, counters, ahead,
    m, n, k, eps, lift, share, old_parts, old_pace, pace, size_ahead,
    normed: tl.constexpr, biased: tl.constexpr, added: tl.constexpr, gated: tl.constexpr,
    gelu: tl.constexpr, cap: tl.constexpr, leaves: tl.constexpr,
    even: tl.constexpr, tile_p: tl.constexpr, tile_m: tl.constexpr, tile_n: tl.constexpr,
    tile_k: tl.constexpr,
    split: tl.constexpr, fetches: tl.constexpr, soon: tl.constexpr,
    scales, form: tl.constexpr, group: tl.constexpr,
):  # fmt: skip
    tile = tl.program_id(0)
    part = tl.program_id(1)
    block = tl.program_id(2)
    if fetches:
        tiles = tl.num_programs(0)
        fetch(
            ahead,
            size_ahead,
            (block * split + part) * tiles + tile,
            tiles * split * tl.num_programs(2),
        )
    wait()
    rows = block * tile_m + tl.arange(0, tile_m)
    columns = tile * tile_n + tl.arange(0, tile_n)
    if gated:  # gate and up lines take turns, so that a pair meets in one thread
        lines = tl.minimum(columns // 2, n - 1) + (columns % 2) * n
        width = 2 * n
        goals = tile * (tile_n // 2) + tl.arange(0, tile_n // 2)
    else:
        lines = tl.minimum(columns, n - 1)
        width = n
        goals = columns
    # operands of the epilogue are loaded before the loop and used after it: a use right here
    # would stall the program before it has started the loop's own loads
    if normed:
        squared = left(old_squares, rows, m, old_parts, old_pace, tile_p)
    if biased:
        shift = tl.load(bias + lines)
    if added:
        place = residual + rows[:, None] * n + goals[None, :]
        base = tl.load(place, (rows[:, None] < m) & (goals[None, :] < n), 0.0)
    scale = tl.load(norm + goals, goals < n, 0.0) if leaves else 0.0
    first = part * share
    last = tl.minimum(first + share, k)
    if form == FLOATS:
        sums = product(
            x, weight, rows, lines, m, k, first, last, even, tile_m, tile_n, tile_k, soon
        )
    else:
        sums = quant_product(
            x, weight, scales, rows, lines, m, width, k, first, last,
            form, group, even, tile_m, tile_n, tile_k, soon,
        )  # fmt: skip
    done = True
    if split > 1:
        sums, done = gathered(
            sums,
            parts,
            counters,
            block * tl.num_programs(0) + tile,
            part,
            m,
            rows,
            columns,
            width,
            split,
        )
    if done:
        if normed:
            sums *= sizes(squared, k, eps, lift, x.dtype.element_ty)[:, None]
        if biased:
            sums += shift.to(tl.float32)[None, :]
        if gated:
            gate, up = tl.split(tl.reshape(sums, (tile_m, tile_n // 2, 2)))
            made = open_gate(gate, up, gelu)
        else:
            made = soft_cap(sums, cap)
        if added:
            made += base.to(tl.float32)
        finish(made, out, scaled, squares, scale, rows, goals, tile, m, n, pace, leaves)


class LinearInput(NamedTuple):
    """Inputs of a product: rows, and what the kernel before left for their norm."""

    rows: Tensor  # [m, k]
    squares: Tensor
    parts: int
    pace: int  # from the squares of one part to the next
    eps: float
    lift: float
    normed: bool

    @classmethod
    def by(cls, x: Tensor | PrenormRows) -> "LinearInput":
        """Plain rows, or `PrenormRows`, whose scaled rows and squares are computed if missing."""
        if isinstance(x, Tensor):
            return cls(x, x, 0, 0, 0.0, 1.0, False)
        if not x.parts:
            pointwise.prepare(x)
        norm_buffers, scale = x.norm_buffers, x.scale
        return cls(
            norm_buffers.scaled,
            norm_buffers.squares,
            x.parts,
            norm_buffers.squares.stride(0),
            scale.eps,
            scale.lift,
            True,
        )


class LinearOutput(NamedTuple):
    """Outputs of a product."""

    out: Tensor  # [m, n]
    norm: Tensor
    scaled: Tensor
    squares: Tensor
    pace: int
    leaves: bool  # something for the norm that follows

    @classmethod
    def by(cls, out: Tensor | PrenormRows, tiles: int) -> "LinearOutput":
        """A tensor, or `PrenormRows` prepared for their norm unless that takes too many parts."""
        if isinstance(out, Tensor):
            return cls(out, out, out, out, 0, False)
        out.parts = tiles if tiles <= LEFT else 0
        norm_buffers = out.norm_buffers
        return cls(
            out.x,
            out.scale.norm,
            norm_buffers.scaled,
            norm_buffers.squares,
            norm_buffers.squares.stride(0),
            out.parts > 0,
        )


class Workspace:
    """Room for partial sums and counters that the programs of one launch share.

    Launches on one stream may share it. Networks that run at the same time, on streams of their
    own, must not: each has its own.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._parts: list[Tensor] = []  # the last is in use; captured passes use earlier ones
        self._counters: Tensor | None = None

    def take(self, sums: int) -> tuple[Tensor, Tensor]:
        """Room for this many sums, and counters that are zero between launches."""
        if self._counters is None:
            self._counters = torch.zeros(1 << 14, dtype=torch.int32, device=self.device)
        if not self._parts or len(self._parts[-1]) < sums:
            size = max(PARTS, triton.next_power_of_2(sums))
            self._parts.append(torch.empty(size, dtype=torch.float32, device=self.device))
        return self._parts[-1], self._counters


@cache
def shared_workspace(device: torch.device) -> Workspace:
    """The workspace of launches outside `using_workspace`."""
    return Workspace(device)


class _Current(threading.local):
    """The workspace of this thread's launches; None: the shared one."""

    workspace: Workspace | None = None


_CURRENT = _Current()


@contextmanager
def using_workspace(own: Workspace) -> Iterator[None]:
    """Have the launches of this thread use a workspace of their own."""
    before = _CURRENT.workspace
    _CURRENT.workspace = own
    try:
        yield
    finally:
        _CURRENT.workspace = before


def workspace(device: torch.device, sums: int = PARTS) -> tuple[Tensor, Tensor]:
    """Room for partial sums and counters, shared by the programs of one launch."""
    return (_CURRENT.workspace or shared_workspace(device)).take(sums)


def project(
    x: Tensor | PrenormRows,  # [m, k]; `PrenormRows` are normed
    weight: Tensor | QuantWeight,  # [n, k]; with a gate [2n, k], gate rows first
    out: Tensor | PrenormRows,  # [m, n], not x; may be the residual
    *,
    bias: Tensor | None = None,  # [n]; with a gate [2n]
    residual: Tensor | None = None,  # [m, n]
    gate: bool = False,
    activation: str = "silu",  # of the gate
    cap: float = 0.0,  # soft cap of the outputs; 0 for none
    ahead: Tensor | None = None,  # weights that are read next
    plan: TileConfig | None = None,
    split: int = 0,  # parts of the inputs; 0 for the number of this shape
) -> None:
    """Rows of x times the weight; `PrenormRows` as output are prepared for their norm."""
    source = as_tensor(x)
    goal = as_tensor(out)
    (m, k), n, lines = source.shape, goal.shape[1], weight.shape[0]
    kind = "gate" if gate else "norm" if isinstance(x, PrenormRows) else "plain"
    plan = plan_for(m, weight, kind, plan)
    read = WeightInput.by(weight)
    split, share = share_of(lines, k, kind, split)
    parts, counters = workspace(source.device, split * m * lines if split > 1 else 0)
    tiles = triton.cdiv(lines, plan.outputs)
    given = LinearInput.by(x)
    taken = LinearOutput.by(out, tiles)
    _project[tiles, split, triton.cdiv(m, plan.rows)](
        given.rows, read.data, taken.out, or_other(bias, goal), or_other(residual, goal),
        given.squares, taken.norm,
        taken.scaled, taken.squares, parts, counters, or_other(ahead, goal), m, n, k, given.eps,
        given.lift, share,
        given.parts, given.pace, taken.pace, 0 if ahead is None else ahead.nbytes,
        given.normed, bias is not None, residual is not None, gate, IS_GELU[activation], cap,
        taken.leaves,
        k % plan.inputs == 0 and share % plan.inputs == 0,
        triton.next_power_of_2(max(given.parts, 1)), plan.rows, plan.outputs, plan.inputs, split,
        ahead is not None,
        plan.soon, *read[1:], **options(plan.warps, plan.stages),
    )  # fmt: skip


def as_tensor(rows: Tensor | PrenormRows) -> Tensor:
    """The rows as a plain tensor."""
    return rows.x if isinstance(rows, PrenormRows) else rows

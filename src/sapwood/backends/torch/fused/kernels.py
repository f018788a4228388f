"""Projections of a few rows as Triton kernels: norm, bias, residual, gate and rotation in the same launch.

A program computes one tile of outputs for all rows of a tile: it walks the inputs in steps, sums in
float32 and finishes the tile in its registers. A norm before it is shared with the kernel that made the rows.
"""
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
# mypy: disallow-untyped-decorators=False, disallow-untyped-calls=False

from functools import cache
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from sapwood.backends.torch.fused import pointwise
from sapwood.backends.torch.fused.fetch import fetch
from sapwood.backends.torch.fused.launch import WIDEN, let_in, options, or_other, wait
from sapwood.backends.torch.fused.plans import Plan, plan_of
from sapwood.backends.torch.fused.stream import LEFT, Stream

PARTS = 1 << 22  # float32 sums that programs may leave to each other


@triton.jit
def product(
    x, weight, rows, lines, m, k, first, last,
    even: tl.constexpr, tile_m: tl.constexpr, tile_n: tl.constexpr, tile_k: tl.constexpr, soon: tl.constexpr,
):  # fmt: skip
    """Rows of x times lines of the weight over the inputs first..last, [tile_m, tile_n].

    The next kernel is let in as soon as this one asks for its inputs, or when it has them.
    """
    if soon:
        let_in()
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
            a, b = a.to(tl.float32), b.to(tl.float32)
        sums = tl.dot(a, b, sums, input_precision="ieee")
        xs += tile_k
        ws += tile_k
    if not soon:
        let_in()
    return sums


@triton.jit
def left(squares, rows, m, parts, pace, tile_p: tl.constexpr):
    """Squares that the makers of rows have left, [parts, rows]."""
    part = tl.arange(0, tile_p)
    there = (part < parts)[:, None] & (rows < m)[None, :]
    return tl.load(squares + part[:, None] * pace + rows[None, :], there, 0.0)


@triton.jit
def sizes(squared, k, eps, lift):
    """What rows that were multiplied by a norm's weight are still to be multiplied by, [rows]."""
    return lift * tl.rsqrt(tl.sum(squared, 0) / k + eps)


@triton.jit
def gathered(sums, parts, counters, tile, part, m, rows, columns, width, split: tl.constexpr):
    """The sum over all parts in the program that comes last, in the order of parts; True there."""
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
def finish(sums, out, scaled, squares, scale, rows, columns, part, m, n, pace, leaves: tl.constexpr):
    """Sums to memory; and for the norm that follows, their products with its scale [columns] and their squares."""
    held = (rows[:, None] < m) & (columns[None, :] < n)
    place = rows[:, None] * n + columns[None, :]
    made = sums.to(out.dtype.element_ty)
    tl.store(out + place, made, held)
    if leaves:
        wide = tl.where(held, made.to(tl.float32), 0.0)
        tl.store(scaled + place, (wide * scale.to(tl.float32)[None, :]).to(out.dtype.element_ty), held)
        tl.store(squares + part * pace + rows, tl.sum(wide * wide, 1), rows < m)


@triton.jit(do_not_specialize=["m", "old_parts"])
def _project(
    x, weight, out, bias, residual, old_squares, norm, scaled, squares, parts, counters, ahead,
    m, n, k, eps, lift, share, old_parts, old_pace, pace, size_ahead,
    normed: tl.constexpr, biased: tl.constexpr, added: tl.constexpr, gated: tl.constexpr, leaves: tl.constexpr,
    even: tl.constexpr, tile_p: tl.constexpr, tile_m: tl.constexpr, tile_n: tl.constexpr, tile_k: tl.constexpr,
    split: tl.constexpr, fetches: tl.constexpr, soon: tl.constexpr,
):  # fmt: skip
    tile, part, block = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    if fetches:
        tiles = tl.num_programs(0)
        fetch(ahead, size_ahead, (block * split + part) * tiles + tile, tiles * split * tl.num_programs(2))
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
    # what the end needs is asked for before the loop and used after it: a program stands still where it uses
    # what has not come yet, and would ask for the loop's own rows and weights that much later
    if normed:
        squared = left(old_squares, rows, m, old_parts, old_pace, tile_p)
    if biased:
        shift = tl.load(bias + goals, goals < n, 0.0)
    if added:
        place = residual + rows[:, None] * n + goals[None, :]
        base = tl.load(place, (rows[:, None] < m) & (goals[None, :] < n), 0.0)
    scale = tl.load(norm + goals, goals < n, 0.0) if leaves else 0.0
    first = part * share
    last = tl.minimum(first + share, k)
    sums = product(x, weight, rows, lines, m, k, first, last, even, tile_m, tile_n, tile_k, soon)
    done = True
    if split > 1:
        sums, done = gathered(
            sums, parts, counters, block * tl.num_programs(0) + tile, part, m, rows, columns, width, split
        )
    if done:
        if normed:
            sums *= sizes(squared, k, eps, lift)[:, None]
        if gated:
            gate, up = tl.split(tl.reshape(sums, (tile_m, tile_n // 2, 2)))
            made = gate * tl.sigmoid(gate) * up
        else:
            made = sums
        if biased:
            made += shift.to(tl.float32)[None, :]
        if added:
            made += base.to(tl.float32)
        finish(made, out, scaled, squares, scale, rows, goals, tile, m, n, pace, leaves)


class Given(NamedTuple):
    """What a product reads of its inputs."""

    rows: Tensor  # [m, k]
    squares: Tensor
    parts: int
    pace: int  # from the squares of one part to the next
    eps: float
    lift: float
    normed: bool

    @classmethod
    def by(cls, x: Tensor | Stream) -> "Given":
        """Rows as they are; those of a stream with what its maker left, which is made here where he did not."""
        if isinstance(x, Tensor):
            return cls(x, x, 0, 0, 0.0, 1.0, False)
        if not x.parts:
            pointwise.prepare(x)
        margin, scale = x.margin, x.scale
        return cls(margin.scaled, margin.squares, x.parts, margin.squares.stride(0), scale.eps, scale.lift, True)


class Taken(NamedTuple):
    """Where a product writes its outputs."""

    out: Tensor  # [m, n]
    norm: Tensor
    scaled: Tensor
    squares: Tensor
    pace: int
    leaves: bool  # something for the norm that follows

    @classmethod
    def by(cls, out: Tensor | Stream, tiles: int) -> "Taken":
        """A tensor, or a stream whose norm is prepared unless that takes too many parts."""
        if isinstance(out, Tensor):
            return cls(out, out, out, out, 0, False)
        out.parts, margin = tiles if tiles <= LEFT else 0, out.margin
        return cls(out.x, out.scale.norm, margin.scaled, margin.squares, margin.squares.stride(0), out.parts > 0)


@cache
def workspace(device: torch.device) -> tuple[Tensor, Tensor]:
    """Sums and counters that programs of one launch leave to each other; launches run one after another."""
    counters = torch.zeros(1 << 14, dtype=torch.int32, device=device)
    return torch.empty(PARTS, dtype=torch.float32, device=device), counters


def project(
    x: Tensor | Stream,  # [m, k]; a stream is normalised
    weight: Tensor,  # [n, k]; with a gate [2n, k], gate rows first
    out: Tensor | Stream,  # [m, n], not x; may be the residual
    *,
    bias: Tensor | None = None,  # [n]
    residual: Tensor | None = None,  # [m, n]
    gate: bool = False,
    ahead: Tensor | None = None,  # weights that are read next
    plan: Plan | None = None,
) -> None:
    """The rows of x times the weight; a stream is also prepared for its norm."""
    source, goal = plainly(x), plainly(out)
    (m, k), n, lines = source.shape, goal.shape[1], weight.shape[0]
    kind = "gate" if gate else "norm" if isinstance(x, Stream) else "plain"
    plan = plan or plan_of(m, lines, k, kind)
    if plan.library:
        _by_library(x, weight, out, bias, residual, gate)
        return
    parts, counters = workspace(source.device)
    split, share = shares(plan, m, lines, k)
    tiles = triton.cdiv(lines, plan.outputs)
    given, taken = Given.by(x), Taken.by(out, tiles)
    _project[tiles, split, triton.cdiv(m, plan.rows)](
        given.rows, weight, taken.out, or_other(bias, goal), or_other(residual, goal), given.squares, taken.norm,
        taken.scaled, taken.squares, parts, counters, or_other(ahead, goal), m, n, k, given.eps, given.lift, share,
        given.parts, given.pace, taken.pace, 0 if ahead is None else ahead.nbytes,
        given.normed, bias is not None, residual is not None, gate, taken.leaves, k % plan.inputs == 0,
        triton.next_power_of_2(max(given.parts, 1)), plan.rows, plan.outputs, plan.inputs, split, ahead is not None,
        plan.soon, **options(plan.warps, plan.stages),
    )  # fmt: skip


def shares(plan: Plan, m: int, lines: int, k: int) -> tuple[int, int]:
    """How many programs share a tile's inputs, and how many inputs each of them takes."""
    split = plan.split if plan.split * m * lines <= PARTS else 1
    share = triton.cdiv(triton.cdiv(k, split), plan.inputs) * plan.inputs
    return triton.cdiv(k, share), share


def plainly(rows: Tensor | Stream) -> Tensor:
    """The rows themselves."""
    return rows.x if isinstance(rows, Stream) else rows


def _by_library(
    x: Tensor | Stream, weight: Tensor, out: Tensor | Stream, bias: Tensor | None, residual: Tensor | None, gate: bool
) -> None:
    """The same by the vendor's matrix product, with kernels around it."""
    rows = x if isinstance(x, Tensor) else pointwise.normalise(x.x, x.scale, torch.empty_like(x.x))
    goal = plainly(out)
    if isinstance(out, Stream):
        out.parts = 0
    if gate:
        pointwise.gate(rows @ weight.T, goal)
    elif residual is not None:
        torch.addmm(residual, rows, weight.T, out=goal)
    else:
        torch.mm(rows, weight.T, out=goal)
    if bias is not None:
        goal += bias
    if gate and residual is not None:
        goal += residual

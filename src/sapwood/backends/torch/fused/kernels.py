"""Projections of a few rows as Triton kernels: norm, bias, residual, gate and rotation in the same launch.

A program computes one tile of outputs for all rows of a tile: it walks the inputs in steps, sums in
float32 and finishes the tile in its registers. Rows are normalised after the product, which is linear:
the sum of squares is gathered on the way.
"""
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
# mypy: disallow-untyped-decorators=False, disallow-untyped-calls=False

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from sapwood.backends.torch.fused import pointwise
from sapwood.backends.torch.fused.launch import WIDEN, options, or_other
from sapwood.backends.torch.fused.plans import Plan, plan_of

PARTS = 1 << 22  # float32 sums that programs may leave to each other


@triton.jit
def product(
    x, weight, norm, rows, lines, m, k, first, last,
    normed: tl.constexpr, even: tl.constexpr, tile_m: tl.constexpr, tile_n: tl.constexpr, tile_k: tl.constexpr,
):  # fmt: skip
    """Rows of x times lines of the weight over the inputs first..last, [tile_m, tile_n]; and the rows' squares."""
    inputs = first + tl.arange(0, tile_k)
    xs = x + rows[:, None] * k + inputs[None, :]
    ws = weight + lines[None, :].to(tl.int64) * k + inputs[:, None]
    held = rows[:, None] < m
    sums = tl.zeros((tile_m, tile_n), tl.float32)
    squares = tl.zeros((tile_m,), tl.float32)
    for start in range(first, last, tile_k):
        if even:
            a = tl.load(xs, mask=held, other=0.0)
            b = tl.load(ws)
        else:
            inside = start + tl.arange(0, tile_k) < last
            a = tl.load(xs, mask=held & inside[None, :], other=0.0)
            b = tl.load(ws, mask=inside[:, None], other=0.0)
        if normed:
            wide = a.to(tl.float32)
            squares += tl.sum(wide * wide, 1)
            at = start + tl.arange(0, tile_k)
            scale = tl.load(norm + at, mask=at < last, other=0.0).to(tl.float32)
            a = (wide * scale[None, :]).to(a.dtype)
        if WIDEN:
            a, b = a.to(tl.float32), b.to(tl.float32)
        sums = tl.dot(a, b, sums, input_precision="ieee")
        xs += tile_k
        ws += tile_k
    return sums, squares


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
def finish(sums, out, bias, residual, rows, columns, m, n, biased: tl.constexpr, added: tl.constexpr):
    """Bias and residual, then to memory."""
    held = (rows[:, None] < m) & (columns[None, :] < n)
    if biased:
        sums += tl.load(bias + columns, mask=columns < n, other=0.0).to(tl.float32)[None, :]
    if added:
        sums += tl.load(residual + rows[:, None] * n + columns[None, :], mask=held, other=0.0).to(tl.float32)
    tl.store(out + rows[:, None] * n + columns[None, :], sums.to(out.dtype.element_ty), mask=held)


@triton.jit(do_not_specialize=["m"])
def _project(
    x, weight, out, norm, bias, residual, parts, counters, m, n, k, eps, lift, share,
    normed: tl.constexpr, biased: tl.constexpr, added: tl.constexpr, gated: tl.constexpr, even: tl.constexpr,
    tile_m: tl.constexpr, tile_n: tl.constexpr, tile_k: tl.constexpr, split: tl.constexpr,
):  # fmt: skip
    tile, part, block = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    rows = block * tile_m + tl.arange(0, tile_m)
    columns = tile * tile_n + tl.arange(0, tile_n)
    if gated:  # gate and up lines take turns, so that a pair meets in one thread
        lines = tl.minimum(columns // 2, n - 1) + (columns % 2) * n
        width = 2 * n
    else:
        lines = tl.minimum(columns, n - 1)
        width = n
    first = part * share
    sums, squares = product(
        x, weight, norm, rows, lines, m, k, first, tl.minimum(first + share, k), normed, even, tile_m, tile_n, tile_k
    )
    if normed:
        sums *= (lift * tl.rsqrt(squares / k + eps))[:, None]
    done = True
    if split > 1:
        sums, done = gathered(
            sums, parts, counters, block * tl.num_programs(0) + tile, part, m, rows, columns, width, split
        )
    if done:
        if gated:
            gate, up = tl.split(tl.reshape(sums, (tile_m, tile_n // 2, 2)))
            halved = tile * (tile_n // 2) + tl.arange(0, tile_n // 2)
            finish(gate * tl.sigmoid(gate) * up, out, bias, residual, rows, halved, m, n, biased, added)
        else:
            finish(sums, out, bias, residual, rows, columns, m, n, biased, added)


@cache
def workspace(device: torch.device) -> tuple[Tensor, Tensor]:
    """Sums and counters that programs of one projection leave to each other; kernels run one after another."""
    counters = torch.zeros(1 << 14, dtype=torch.int32, device=device)
    return torch.empty(PARTS, dtype=torch.float32, device=device), counters


def project(
    x: Tensor,  # [m, k]
    weight: Tensor,  # [n, k]; with a gate [2n, k], gate rows first
    out: Tensor,  # [m, n], not x; may be the residual
    *,
    norm: Tensor | None = None,  # [k]; in float16 at most 1 in size, so that no product overflows
    eps: float = 0.0,
    lift: float = 1.0,  # what the norm was divided by
    bias: Tensor | None = None,  # [n]
    residual: Tensor | None = None,  # [m, n]
    gate: bool = False,
    plan: Plan | None = None,
) -> Tensor:
    """The rows of x, normalised where there is a norm, times the weight; returns `out`."""
    m, k = x.shape
    n, lines = out.shape[1], weight.shape[0]
    kind = "gate" if gate else "norm" if norm is not None else "plain"
    plan = plan or plan_of(m, lines, k, kind)
    if plan.library:
        return _by_library(x, weight, out, norm, eps, lift, bias, residual, gate)
    parts, counters = workspace(x.device)
    split = plan.split if norm is None and plan.split * m * lines <= PARTS else 1
    share = triton.cdiv(triton.cdiv(k, split), plan.inputs) * plan.inputs
    split = triton.cdiv(k, share)
    grid = triton.cdiv(lines, plan.outputs), split, triton.cdiv(m, plan.rows)
    _project[grid](
        x, weight, out, or_other(norm, x), or_other(bias, x), or_other(residual, x), parts, counters,
        m, n, k, eps, lift, share,
        norm is not None, bias is not None, residual is not None, gate, k % plan.inputs == 0,
        plan.rows, plan.outputs, plan.inputs, split, **options(plan.warps, plan.stages),
    )  # fmt: skip
    return out


def _by_library(
    x: Tensor, weight: Tensor, out: Tensor, norm: Tensor | None, eps: float, lift: float,
    bias: Tensor | None, residual: Tensor | None, gate: bool,
) -> Tensor:  # fmt: skip
    """The same by the vendor's matrix product, with kernels around it."""
    if norm is not None:
        x = pointwise.normalise(x, norm, torch.empty_like(x), eps, lift)
    if gate:
        pointwise.gate(x @ weight.T, out)
    elif residual is not None:
        torch.addmm(residual, x, weight.T, out=out)
    else:
        torch.mm(x, weight.T, out=out)
    if bias is not None:
        out += bias
    if gate and residual is not None:
        out += residual
    return out

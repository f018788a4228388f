"""Mixtures of experts: routing, rows grouped by expert on the device, and products of each group.

A row's experts and their shares depend on the row alone, a product of a row has the same bits
beside any other rows, and a row's outputs are added in the order of its choice: so other rows
change no bit. The host reads nothing, so that one captured pass serves any routing.
"""
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
# mypy: disallow-untyped-decorators=False, disallow-untyped-calls=False

from dataclasses import replace

import triton
import triton.language as tl
from torch import Tensor

from sapwood.backends.torch.cuda.kernels.activations import IS_GELU, open_gate
from sapwood.backends.torch.cuda.kernels.expert_buffers import (
    ExpertBuffers,
    group_count,
    group_tile,
)
from sapwood.backends.torch.cuda.kernels.launch import options, wait
from sapwood.backends.torch.cuda.kernels.linear import LinearInput, left, product, project, sizes
from sapwood.backends.torch.cuda.kernels.pointwise import leave
from sapwood.backends.torch.cuda.kernels.prenorm import PrenormRows
from sapwood.backends.torch.cuda.kernels.tile_configs import TileConfig, plan_of

KIND = "expert"  # of a product, in the table of tile sizes
PAIRS = 8192  # of choices and experts that the grouping program compares at once


# ----------------------------------------------------------------------------------------- routing
@triton.jit
def _route(
    logits, slots, picks, shares, experts,
    chosen: tl.constexpr, normalised: tl.constexpr, tile: tl.constexpr, tile_c: tl.constexpr,
):  # fmt: skip
    wait()
    row = tl.program_id(0)
    ids = tl.arange(0, tile)
    places = tl.arange(0, tile_c)
    values = tl.load(logits + row * experts + ids, ids < experts, float("-inf"))
    weights = tl.exp(values - tl.max(values, 0))
    found = tl.zeros((tile_c,), tl.int32)
    parts = tl.zeros((tile_c,), tl.float32)
    for place in range(chosen):
        best = tl.minimum(tl.argmax(values, 0, tie_break_left=True), experts - 1).to(tl.int32)
        weight = tl.sum(tl.where(ids == best, weights, 0.0), 0)
        found = tl.where(places == place, best, found)
        parts = tl.where(places == place, weight, parts)
        values = tl.where(ids == best, float("-inf"), values)
    total = tl.sum(parts if normalised else weights, 0)
    used = tl.load(slots + row) >= 0
    held = places < chosen
    tl.store(picks + row * chosen + places, tl.where(used, found, -1), held)
    tl.store(shares + row * chosen + places, parts / total, held)


def route(buffers: ExpertBuffers, slots: Tensor, normalised: bool) -> None:
    """Choose the experts of each row by the router's logits; rows without a slot get none."""
    rows, experts = buffers.logits.shape
    chosen = buffers.picks.shape[1]
    _route[rows,](
        buffers.logits, slots, buffers.picks, buffers.shares, experts, chosen, normalised,
        max(16, triton.next_power_of_2(experts)), max(16, triton.next_power_of_2(chosen)),
        **options(warps=1),
    )  # fmt: skip


@triton.jit(do_not_specialize=["choices", "most"])
def _group(
    picks, members, groups, choices, most,
    tile: tl.constexpr, tile_c: tl.constexpr, tile_e: tl.constexpr,
):  # fmt: skip
    wait()
    ids = tl.arange(0, tile_e)
    each = tl.arange(0, tile_c)
    counts = tl.zeros((tile_e,), tl.int32)
    for start in range(0, choices, tile_c):
        pick = tl.load(picks + start + each, start + each < choices, -1)
        counts += tl.sum((pick[:, None] == ids[None, :]).to(tl.int32), 0)
    several = (counts + tile - 1) // tile  # groups of each expert
    ends = tl.cumsum(several, 0)
    firsts = ends - several
    for start in range(0, most, tile_c):
        group = start + each
        expert = tl.sum((ends[None, :] <= group[:, None]).to(tl.int32), 1)
        rest = counts[None, :] - (group[:, None] - firsts[None, :]) * tile
        held = tl.sum(tl.where(ids[None, :] == expert[:, None], rest, 0), 1)
        tl.store(groups + group, expert, group < most)
        tl.store(groups + most + group, tl.minimum(held, tile), group < most)
    places = firsts * tile  # of each expert's next choice
    for start in range(0, choices, tile_c):
        choice = start + each
        pick = tl.load(picks + choice, choice < choices, -1)
        mine = (pick[:, None] == ids[None, :]).to(tl.int32)
        place = tl.sum(mine * (places[None, :] + tl.cumsum(mine, 0) - 1), 1)
        tl.store(members + place, choice, pick >= 0)
        places += tl.sum(mine, 0)


def group(buffers: ExpertBuffers, tile: int) -> int:
    """Put choices of one expert side by side in groups of up to `tile`; most groups there are."""
    choices, experts = buffers.picks.numel(), buffers.logits.shape[1]
    most = group_count(choices, experts, tile)
    tile_e = max(16, triton.next_power_of_2(experts))
    tile_c = max(16, min(PAIRS // tile_e, triton.next_power_of_2(choices)))
    _group[1,](
        buffers.picks, buffers.members, buffers.groups, choices, most, tile, tile_c, tile_e,
        **options(8),
    )  # fmt: skip
    return most


# ---------------------------------------------------------------------------------------- products
@triton.jit(do_not_specialize=["m", "parts", "most"])
def _multiply(
    x, weight, out, squares, members, groups, m, n, k, eps, lift, parts, pace, most,
    chosen: tl.constexpr, normed: tl.constexpr, gated: tl.constexpr, gelu: tl.constexpr,
    even: tl.constexpr, tile_p: tl.constexpr, tile_m: tl.constexpr, tile_n: tl.constexpr,
    tile_k: tl.constexpr, soon: tl.constexpr,
):  # fmt: skip
    wait()
    tile = tl.program_id(0)
    group = tl.program_id(1)
    held = tl.load(groups + most + group)
    if held > 0:
        lane = tl.arange(0, tile_m)
        choice = tl.load(members + group * tile_m + lane, lane < held, 0)
        rows = tl.where(lane < held, choice // chosen, m)
        columns = tile * tile_n + tl.arange(0, tile_n)
        if gated:  # gate and up lines take turns, so that a pair meets in one thread
            lines = tl.minimum(columns // 2, n - 1) + (columns % 2) * n
            width = 2 * n
            goals = tile * (tile_n // 2) + tl.arange(0, tile_n // 2)
        else:
            lines = tl.minimum(columns, n - 1)
            width = n
            goals = columns
        if normed:
            squared = left(squares, rows, m, parts, pace, tile_p)
        own = weight + tl.load(groups + group).to(tl.int64) * width * k
        sums = product(x, own, rows, lines, m, k, 0, k, even, tile_m, tile_n, tile_k, soon)
        if normed:
            sums *= sizes(squared, k, eps, lift, x.dtype.element_ty)[:, None]
        if gated:
            gate, up = tl.split(tl.reshape(sums, (tile_m, tile_n // 2, 2)))
            made = open_gate(gate, up, gelu)
        else:
            made = sums
        place = out + choice[:, None].to(tl.int64) * n + goals[None, :]
        mask = (lane < held)[:, None] & (goals < n)[None, :]
        tl.store(place, made.to(out.dtype.element_ty), mask)


def multiply(
    x: Tensor | PrenormRows,  # [m, k]
    weight: Tensor,  # [experts, n, k]; with a gate [experts, 2n, k], gate rows first
    out: Tensor,  # [choices, n]
    buffers: ExpertBuffers,
    most: int,  # groups
    tile: int,  # choices of a group
    *,
    activation: str = "",  # of the gate; none without it
    plan: TileConfig | None = None,
) -> None:
    """Products of each choice's row with its expert's weight; row i of x has choices from i on.

    x has a row for each choice, or one for each row of the pass.
    """
    given = LinearInput.by(x)
    m, k = (x.x if isinstance(x, PrenormRows) else x).shape
    lines = weight.shape[1]
    plan = replace(plan or plan_of(tile, lines, k, KIND), rows=tile)
    _multiply[triton.cdiv(lines, plan.outputs), most](
        given.rows, weight, out, given.squares, buffers.members, buffers.groups, m, out.shape[1],
        k, given.eps, given.lift, given.parts, given.pace, most,
        len(out) // m, given.normed, bool(activation), IS_GELU[activation or "silu"],
        k % plan.inputs == 0, triton.next_power_of_2(max(given.parts, 1)), tile, plan.outputs,
        plan.inputs, plan.soon, **options(plan.warps, plan.stages),
    )  # fmt: skip


@triton.jit
def _add_choices(
    outputs, shares, base, x, norm, scaled, squares, width,
    chosen: tl.constexpr, tile: tl.constexpr,
):  # fmt: skip
    wait()
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, tile)
    inside = columns < width
    sums = tl.zeros((tile,), tl.float32)
    for place in range(chosen):
        choice = row * chosen + place
        part = tl.load(outputs + choice * width + columns, inside, 0.0).to(tl.float32)
        sums += tl.load(shares + choice) * part
    place = row * width + columns
    total = (sums + tl.load(base + place, inside, 0.0).to(tl.float32)).to(x.dtype.element_ty)
    tl.store(x + place, total, inside)
    leave(total, norm, scaled, squares, row, columns, inside, width)


def add_choices(buffers: ExpertBuffers, residual: Tensor, out: PrenormRows) -> None:
    """The residual with the outputs of each row's experts added, by their shares."""
    m, width = residual.shape
    tile = triton.next_power_of_2(width)
    norm_buffers = out.norm_buffers
    _add_choices[m,](
        buffers.outputs, buffers.shares, residual, out.x, out.scale.norm, norm_buffers.scaled,
        norm_buffers.squares, width, buffers.picks.shape[1], tile,
        **options(8 if tile > 2048 else 4),
    )  # fmt: skip
    out.parts = 1


def add_experts(
    x: PrenormRows,  # [m, width], normed before router and experts
    router: Tensor,  # [experts, width]
    gate_up: Tensor,  # [experts, 2 inner, width]
    down: Tensor,  # [experts, width, inner]
    out: PrenormRows,  # [m, width], not x
    buffers: ExpertBuffers,  # of m rows
    slots: Tensor,  # [m]; -1 in rows that nothing reads
    *,
    normalised: bool,
    activation: str,
) -> None:
    """The rows with the outputs of their experts added."""
    project(x, router, buffers.logits)
    route(buffers, slots, normalised)
    tile = group_tile(buffers.picks.numel(), len(router))
    most = group(buffers, tile)
    multiply(x, gate_up, buffers.inner, buffers, most, tile, activation=activation)
    multiply(buffers.inner, down, buffers.outputs, buffers, most, tile)
    add_choices(buffers, x.x, out)

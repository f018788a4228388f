"""Fused QKV projection of a few rows: norm, product, rotation, keys and values to slots."""
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
# mypy: disallow-untyped-decorators=False, disallow-untyped-calls=False

import triton
import triton.language as tl
from torch import Tensor

from sapwood.backends.torch.cuda.kernels.attention_tiles import HeadSizes as HeadSizes
from sapwood.backends.torch.cuda.kernels.exact_sum import real, whole
from sapwood.backends.torch.cuda.kernels.launch import options, or_other, wait
from sapwood.backends.torch.cuda.kernels.linear import LinearInput, left, product, sizes
from sapwood.backends.torch.cuda.kernels.prenorm import PrenormRows
from sapwood.backends.torch.cuda.kernels.quant_product import (
    FLOATS,
    WeightInput,
    plan_for,
    quant_product,
)
from sapwood.backends.torch.cuda.kernels.tile_configs import TileConfig, widened
from sapwood.backends.torch.quant_weight import QuantWeight


@triton.jit
def rotary_angles(rows, dims, head, m, angles, slots, heads: tl.constexpr, width: tl.constexpr):
    """Cosines and sines [rows, dims] of rows, and the slots [rows] of keys and values."""
    half: tl.constexpr = width // 2
    there = dims[None, :] < half
    live = rows < m
    slot = tl.load(slots + rows, live & (head >= heads), -1)
    angle = angles + rows[:, None] * width + dims[None, :]
    return (
        tl.load(angle, live[:, None] & there, 0.0),
        tl.load(angle + half, live[:, None] & there, 0.0),
        slot,
    )


@triton.jit
def turn(
    low, high, cosine, sine, slot, rows, dims, head, m, queries, pool, plane, query_norm, key_norm,
    eps,
    head_normed: tl.constexpr, heads: tl.constexpr, kv_heads: tl.constexpr, width: tl.constexpr,
):  # fmt: skip
    """Normalise and rotate the two halves [rows, dims] of one head, and store them."""
    half: tl.constexpr = width // 2
    there = dims[None, :] < half
    live = rows < m
    if head < heads + kv_heads:
        if head_normed:
            low, high = tl.where(there, low, 0.0), tl.where(there, high, 0.0)
            kind: tl.constexpr = queries.dtype.element_ty
            squares = tl.sum(whole(low * low, kind) + whole(high * high, kind), 1)
            size = tl.rsqrt(real(squares, kind) / width + eps)[:, None]
            asks = (dims < half) & (head < heads)  # a query's norm, or else a key's
            tells = (dims < half) & (head >= heads)
            first = tl.load(query_norm + dims, asks, 0.0) + tl.load(key_norm + dims, tells, 0.0)
            second = tl.load(query_norm + half + dims, asks, 0.0) + tl.load(
                key_norm + half + dims, tells, 0.0
            )
            low = low * size * first.to(tl.float32)[None, :]
            high = high * size * second.to(tl.float32)[None, :]
        low, high = low * cosine - high * sine, high * cosine + low * sine
    low, high = low.to(queries.dtype.element_ty), high.to(queries.dtype.element_ty)
    if head < heads:
        place = queries + rows[:, None] * (heads * width) + head * width + dims[None, :]
        tl.store(place, low, live[:, None] & there)
        tl.store(place + half, high, live[:, None] & there)
    else:
        other = (head - heads) % kv_heads
        start = pool + ((head - heads) // kv_heads) * plane + other * width
        place = start + slot[:, None] * (kv_heads * width) + dims[None, :]
        tl.store(place, low, (slot >= 0)[:, None] & there)
        tl.store(place + half, high, (slot >= 0)[:, None] & there)


@triton.jit(do_not_specialize=["m", "parts"])
def _qkv(
    x, weight, squares, queries, pool, bias, query_norm, key_norm, angles, slots,
    m, k, eps, lift, parts, pace, plane,
    biased: tl.constexpr, head_normed: tl.constexpr, even: tl.constexpr,
    heads: tl.constexpr, kv_heads: tl.constexpr, width: tl.constexpr,
    tile_p: tl.constexpr, tile_m: tl.constexpr, tile_n: tl.constexpr, tile_k: tl.constexpr,
    soon: tl.constexpr,
    scales, form: tl.constexpr, group: tl.constexpr,
):  # fmt: skip
    wait()
    dims_per: tl.constexpr = tile_n // 2  # a tile holds pairs of one head that rotate together
    per_head: tl.constexpr = (width // 2 + dims_per - 1) // dims_per
    tile = tl.program_id(0)
    block = tl.program_id(1)
    head = tile // per_head
    first = (tile % per_head) * dims_per
    rows = block * tile_m + tl.arange(0, tile_m)
    columns = tl.arange(0, tile_n)
    dims = first + tl.arange(0, dims_per)
    lines = (
        head * width
        + tl.minimum(first + columns // 2, width // 2 - 1)
        + (columns % 2) * (width // 2)
    )
    cosine, sine, slot = rotary_angles(rows, dims, head, m, angles, slots, heads, width)
    squared = left(squares, rows, m, parts, pace, tile_p)
    if form == FLOATS:
        sums = product(x, weight, rows, lines, m, k, 0, k, even, tile_m, tile_n, tile_k, soon)
    else:
        sums = quant_product(
            x, weight, scales, rows, lines, m, (heads + 2 * kv_heads) * width, k, 0, k,
            form, group, even, tile_m, tile_n, tile_k, soon,
        )  # fmt: skip
    sums *= sizes(squared, k, eps, lift, x.dtype.element_ty)[:, None]
    if biased:
        sums += tl.load(bias + lines).to(tl.float32)[None, :]
    low, high = tl.split(tl.reshape(sums, (tile_m, dims_per, 2)))
    turn(
        low, high, cosine, sine, slot, rows, dims, head, m, queries, pool, plane, query_norm,
        key_norm, eps,
        head_normed, heads, kv_heads, width,
    )  # fmt: skip


def project_heads(
    x: PrenormRows,  # [m, k]
    weight: Tensor | QuantWeight,  # [heads * width, k]: queries, keys, values
    queries: Tensor,  # [m, heads, width], out
    # [2, ..., slots, kv heads, width] contiguous: keys and values of the layer, out
    planes: Tensor,
    *,
    heads: HeadSizes,
    angles: Tensor,  # [m, width] float32, cosines then sines
    slots: Tensor,  # [m] which slot of the planes takes a row's key and value, -1 for none
    bias: Tensor | None = None,
    query_norm: Tensor | None = None,  # [width], with key_norm
    key_norm: Tensor | None = None,
    plan: TileConfig | None = None,
) -> None:
    """Queries of the rows, and their keys and values in their slots."""
    m, k = x.x.shape
    plan = plan_for(m, weight, "qkv", plan)
    read = WeightInput.by(weight)
    plane = planes.stride(0)
    eps = x.scale.eps
    norms = or_other(query_norm, queries), or_other(key_norm, queries)
    shape = query_norm is not None, heads.queries, heads.keys, heads.width
    widest = triton.next_power_of_2(heads.width)
    tile = min(plan.outputs, widest)
    if query_norm is not None:  # a norm needs the whole head
        tile = widest
        plan = widened(plan, tile)
    given = LinearInput.by(x)
    grid = heads.all * triton.cdiv(heads.width, tile), triton.cdiv(m, plan.rows)
    _qkv[grid](
        given.rows, read.data, given.squares, queries, planes, or_other(bias, queries), *norms,
        angles, slots,
        m, k, eps, given.lift, given.parts, given.pace, plane, bias is not None, *shape[:1],
        k % plan.inputs == 0,
        *shape[1:], triton.next_power_of_2(given.parts), plan.rows, tile, plan.inputs,
        plan.soon, *read[1:], **options(plan.warps, plan.stages),
    )  # fmt: skip

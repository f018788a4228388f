"""Norms over all queries and over all keys of a row, then rotation, and keys and values to slots.

Of models whose norms are not of each head: the projection comes first, as such a norm needs whole
rows.
"""
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
# mypy: disallow-untyped-decorators=False, disallow-untyped-calls=False

import triton
import triton.language as tl
from torch import Tensor

from sapwood.backends.torch.cuda.kernels.attention_tiles import HeadSizes
from sapwood.backends.torch.cuda.kernels.launch import options, wait

PARTS = 3  # queries, keys and values


@triton.jit
def head_norms(query_norm, key_norm, place, asks, tells):
    """Weights of the norm at these places: of queries or of keys."""
    asked = tl.load(query_norm + place, asks, 0.0).to(tl.float32)
    return asked + tl.load(key_norm + place, tells, 0.0).to(tl.float32)


@triton.jit
def _turn_rows(
    made, queries, pool, query_norm, key_norm, angles, slots, eps, plane,
    heads: tl.constexpr, kv_heads: tl.constexpr, width: tl.constexpr,
    tile_h: tl.constexpr, tile_d: tl.constexpr,
):  # fmt: skip
    wait()
    half: tl.constexpr = width // 2
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    count = tl.where(part == 0, heads, kv_heads)
    first = tl.where(part == 0, 0, tl.where(part == 1, heads, heads + kv_heads))
    lines = tl.arange(0, tile_h)
    dims = tl.arange(0, tile_d)
    inside = (lines < count)[:, None] & (dims < half)[None, :]
    place = lines[:, None] * width + dims[None, :]
    start = made + (row * (heads + 2 * kv_heads) + first) * width + place
    low = tl.load(start, inside, 0.0).to(tl.float32)
    high = tl.load(start + half, inside, 0.0).to(tl.float32)
    if part < 2:
        squares = tl.sum(tl.sum(low * low + high * high, 1), 0)
        size = tl.rsqrt(squares / (count * width) + eps)
        asks = inside & (part == 0)
        tells = inside & (part == 1)
        low = low * size * head_norms(query_norm, key_norm, place, asks, tells)
        high = high * size * head_norms(query_norm, key_norm, place + half, asks, tells)
        angle = angles + row * width + dims
        cosine = tl.load(angle, dims < half, 0.0)[None, :]
        sine = tl.load(angle + half, dims < half, 0.0)[None, :]
        low, high = low * cosine - high * sine, high * cosine + low * sine
    kind: tl.constexpr = queries.dtype.element_ty
    if part == 0:
        goal = queries + row * heads * width + place
        tl.store(goal, low.to(kind), inside)
        tl.store(goal + half, high.to(kind), inside)
    else:
        slot = tl.load(slots + row)
        goal = pool + (part - 1) * plane + slot * (kv_heads * width) + place
        tl.store(goal, low.to(kind), inside & (slot >= 0))
        tl.store(goal + half, high.to(kind), inside & (slot >= 0))


def turn_rows(
    made: Tensor,  # [m, heads * width]: queries, keys, values
    queries: Tensor,  # [m, heads, width], out
    # [2, ..., slots, kv heads, width] contiguous: keys and values of the layer, out
    planes: Tensor,
    *,
    heads: HeadSizes,
    norms: tuple[Tensor, Tensor],  # over all queries and all keys of a row
    eps: float,
    angles: Tensor,  # [m, width] float32, cosines then sines
    slots: Tensor,  # [m] which slot of the planes takes a row's key and value, -1 for none
) -> None:
    """Normed and rotated queries of the rows, and their keys and values in their slots."""
    tile_h = triton.next_power_of_2(max(heads.queries, heads.keys))
    tile_d = max(16, triton.next_power_of_2(heads.width // 2))
    _turn_rows[len(made), PARTS](
        made, queries, planes, *norms, angles, slots, eps, planes.stride(0),
        heads.queries, heads.keys, heads.width, tile_h, tile_d,
        **options(8 if tile_h * tile_d > 2048 else 4),
    )  # fmt: skip

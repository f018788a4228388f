"""The steps of a growth as Triton kernels; the same functions as in `plain`, which says what they do."""
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
# mypy: disallow-untyped-decorators=False, disallow-untyped-calls=False

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from sapwood.backends.torch.fused import cut as cutting
from sapwood.backends.torch.fused import kernels, topk
from sapwood.backends.torch.fused.cut import rank_of
from sapwood.backends.torch.fused.launch import options, or_other
from sapwood.backends.torch.fused.layer import Layer, Scale
from sapwood.backends.torch.fused.onward import onward as onward
from sapwood.backends.torch.fused.plain import NEW, ROOT_AT, SEAT, TEXT_ROWS
from sapwood.backends.torch.fused.topk import tile
from sapwood.backends.torch.fused.tree import Parcel

STEP = 64  # keys that a program looks at, at a time
SHARE = 512  # slots of the text for which one more program is worth it


def project(
    x: Tensor,
    weight: Tensor,
    out: Tensor,
    *,
    norm: Scale | None = None,
    eps: float = 0.0,
    residual: Tensor | None = None,
    gate: bool = False,
) -> None:
    """The rows of x, normalised where there is a norm, times the weight."""
    scale, lift = (None, 1.0) if norm is None else (norm.weight, norm.lift)
    kernels.project(x, weight, out, norm=scale, eps=eps, lift=lift, residual=residual, gate=gate)


# --------------------------------------------------------------------------------- rows of the head
@triton.jit
def join(
    token, state, embedding, token_norm, state_norm, x, base, row, width, eps, after: tl.constexpr, tile_w: tl.constexpr
):
    """Norm an embedding and a state, and write them beside each other."""
    columns = tl.arange(0, tile_w)
    inside = columns < width
    embed = tl.load(embedding + token * width + columns, inside, 0.0).to(tl.float32)
    raw = tl.load(state + columns, inside, 0.0).to(tl.float32)
    left = tl.load(token_norm + columns, inside, 0.0).to(tl.float32)
    right = tl.load(state_norm + columns, inside, 0.0).to(tl.float32)
    embed = embed * tl.rsqrt(tl.sum(embed * embed, 0) / width + eps) * left
    normed = raw * tl.rsqrt(tl.sum(raw * raw, 0) / width + eps) * right
    kind = x.dtype.element_ty
    tl.store(x + row * 2 * width + columns, embed.to(kind), inside)
    tl.store(x + row * 2 * width + width + columns, normed.to(kind), inside)
    tl.store(base + row * width + columns, (normed if after else raw).to(kind), inside)


@triton.jit
def _pair(
    tokens, states, embedding, token_norm, state_norm, x, base, width, eps,
    after: tl.constexpr, tile_w: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    token = tl.load(tokens + row)
    join(token, states + row * width, embedding, token_norm, state_norm, x, base, row, width, eps, after, tile_w)


def pair(layer: Layer, tokens: Tensor, states: Tensor, x: Tensor, base: Tensor) -> None:
    """Join the normed embeddings of tokens with normed states."""
    _pair[len(x),](
        tokens, states, layer.embedding, layer.token_norm, layer.state_norm, x, base, layer.width, layer.eps,
        layer.after, tile(layer.width), **options(),
    )  # fmt: skip


@triton.jit(do_not_specialize=["first", "size", "fan", "before"])
def _select(
    reach, tokens, states, seen, opened, sees, embedding, token_norm, state_norm, x, base,
    first, size, fan, slots, before, width, eps,
    below: tl.constexpr, after: tl.constexpr, step: tl.constexpr, tile_c: tl.constexpr, tile_s: tl.constexpr,
    tile_w: tl.constexpr,
):  # fmt: skip
    row, each, at = tl.program_id(0), tl.arange(0, tile_c), tl.arange(0, tile_s)
    rank = rank_of(reach, each, size, step, tile_c)
    chosen = tl.sum(tl.where((rank == row) & (each < size), each, 0), 0)
    parent = chosen // fan
    tl.store(opened + row, (first + chosen).to(tl.int64))
    bits = tl.where(at == before + row, 1, 0).to(tl.int8)
    if below:
        bits |= tl.load(seen + parent * slots + at, at < slots, 0)
    tl.store(sees + row * slots + at, bits, at < slots)
    token = tl.load(tokens + chosen)
    join(token, states + parent * width, embedding, token_norm, state_norm, x, base, row, width, eps, after, tile_w)


def select(
    layer: Layer,
    reach: Tensor,
    tokens: Tensor,
    first: int,
    width: int,
    states: Tensor,
    seen: Tensor | None,
    before: int,
    x: Tensor,
    base: Tensor,
    opened: Tensor,
    sees: Tensor,
) -> None:
    """Choose the best candidates of a level and make them rows of the head."""
    size, slots = len(reach), sees.shape[1]
    _select[len(x),](
        reach.view(torch.int64), tokens, states, or_other(seen, sees), opened, sees, layer.embedding, layer.token_norm,
        layer.state_norm, x, base, first, size, width, slots, before, layer.width, layer.eps, seen is not None,
        layer.after, 32, tile(size), tile(slots), tile(layer.width), **options(),
    )  # fmt: skip


# ----------------------------------------------------------------------------------------- attention
@triton.jit(do_not_specialize=["depth", "before"])
def _turn(
    qkv, facts, angles, keys, values, query, depth, before, slots,
    new: tl.constexpr, root_at: tl.constexpr, text_rows: tl.constexpr, seat: tl.constexpr, text: tl.constexpr,
    heads: tl.constexpr, kv_heads: tl.constexpr, width: tl.constexpr, tile_h: tl.constexpr,
):  # fmt: skip
    row, head, dims = tl.program_id(0), tl.program_id(1), tl.arange(0, tile_h)
    half: tl.constexpr = width // 2
    there = dims < half
    count, place = tl.load(facts + new), tl.load(facts + text_rows)
    if text:
        position, slot, live = tl.load(facts + root_at) - count + row, place + row, row < count
    else:
        position, slot, live = tl.load(facts + root_at) - 1 + depth, place + count + before + row, row >= 0
    start = qkv + (row * (heads + 2 * kv_heads) + head) * width
    low, high = (
        tl.load(start + dims, there, 0.0).to(tl.float32),
        tl.load(start + half + dims, there, 0.0).to(tl.float32),
    )
    if head < heads + kv_heads:
        angle = angles + tl.maximum(position, 0) * width
        cosine, sine = tl.load(angle + dims, there, 0.0), tl.load(angle + half + dims, there, 0.0)
        low, high = low * cosine - high * sine, high * cosine + low * sine
    low, high = low.to(query.dtype.element_ty), high.to(query.dtype.element_ty)
    if head < heads:
        goal = query + (row * heads + head) * width
        tl.store(goal + dims, low, there)
        tl.store(goal + half + dims, high, there)
    else:
        line = (tl.load(facts + seat) * kv_heads + (head - heads) % kv_heads) * slots + slot
        if head < heads + kv_heads:
            tl.store(keys + line * width + dims, low, there & live)
            tl.store(keys + line * width + half + dims, high, there & live)
        else:
            tl.store(values + line * width + dims, low, there & live)
            tl.store(values + line * width + half + dims, high, there & live)


def turn(
    layer: Layer,
    qkv: Tensor,
    facts: Tensor,
    angles: Tensor,
    keys: Tensor,
    values: Tensor,
    query: Tensor,
    depth: int,
    before: int,
) -> None:
    """Rotate queries and keys and put keys and values in place."""
    heads, kv = layer.heads, layer.kv_heads
    _turn[len(qkv), heads + 2 * kv](
        qkv, facts, angles, keys, values, query, depth, before, keys.shape[2], NEW, ROOT_AT, TEXT_ROWS, SEAT,
        depth == 0, heads, kv, layer.head_width, tile(layer.head_width // 2), **options(warps=1),
    )  # fmt: skip


@triton.jit(do_not_specialize=["many", "rows", "count", "wide"])
def _attend(
    query, facts, keys, values, sees, peaks, totals, found, slots, many, rows, count, wide, scale,
    new: tl.constexpr, text_rows: tl.constexpr, seat: tl.constexpr, kv_heads: tl.constexpr, group: tl.constexpr,
    width: tl.constexpr, tile_m: tl.constexpr, tile_d: tl.constexpr, step: tl.constexpr,
):  # fmt: skip
    head, part = tl.program_id(0), tl.program_id(1)
    each, dims, ahead = tl.arange(0, tile_m), tl.arange(0, tile_d), tl.arange(0, step)
    row, live = each // group, each < rows * group
    line = row * kv_heads * group + head * group + each % group  # of [rows, heads]
    end = (tl.load(facts + text_rows) + tl.load(facts + new)).to(tl.int32)
    base = (tl.load(facts + seat) * kv_heads + head) * slots
    inner = dims < width
    q = tl.load(query + line[:, None] * width + dims[None, :], live[:, None] & inner[None, :], 0.0)
    peak = tl.full((tile_m,), float("-inf"), tl.float32)
    total = tl.zeros((tile_m,), tl.float32)
    read = tl.zeros((tile_m, tile_d), tl.float32)
    if part == 0:  # the rows of the tree
        for start in range(0, count, step):
            at = start + ahead
            seen = tl.load(sees + row[:, None] * wide + at[None, :], live[:, None] & (at < count)[None, :], 0) > 0
            away = ((base + end + at) * width)[None, :] + dims[:, None]
            peak, total, read = glance(q, keys, values, away, seen, at < count, inner, peak, total, read, scale)
    else:
        share = tl.cdiv(tl.cdiv(end, many), step) * step
        first = (part - 1) * share
        last = tl.minimum(first + share, end)
        for start in range(first, last, step):
            at = start + ahead
            away = ((base + at) * width)[None, :] + dims[:, None]
            seen = live[:, None] & (at < last)[None, :]
            peak, total, read = glance(q, keys, values, away, seen, at < last, inner, peak, total, read, scale)
    goal = part * rows * kv_heads * group + line
    tl.store(peaks + goal, peak, live)
    tl.store(totals + goal, total, live)
    tl.store(found + goal[:, None] * width + dims[None, :], read, live[:, None] & inner[None, :])


@triton.jit
def glance(q, keys, values, away, seen, there, inner, peak, total, read, scale):
    """Take one step of keys [d, step] into account."""
    k = tl.load(keys + away, inner[:, None] & there[None, :], 0.0)
    v = tl.trans(tl.load(values + away, inner[:, None] & there[None, :], 0.0))
    scores = tl.where(seen, tl.dot(q.to(k.dtype), k, input_precision="ieee") * scale, float("-inf"))
    best = tl.maximum(peak, tl.max(scores, 1))
    safe = tl.where(best == float("-inf"), 0.0, best)
    weights, fade = tl.exp2(scores - safe[:, None]), tl.exp2(peak - safe)
    read = tl.dot(weights.to(v.dtype), v, read * fade[:, None], input_precision="ieee")
    return best, total * fade + tl.sum(weights, 1), read


@triton.jit(do_not_specialize=["lines", "parts"])
def _merge(peaks, totals, found, out, lines, parts, width, tile_p: tl.constexpr, tile_d: tl.constexpr):
    line, part, dims = tl.program_id(0), tl.arange(0, tile_p), tl.arange(0, tile_d)
    there = part < parts
    peak = tl.load(peaks + part * lines + line, there, float("-inf"))
    weight = tl.exp2(peak - tl.max(peak, 0))
    total = tl.sum(weight * tl.load(totals + part * lines + line, there, 0.0), 0)
    inside = there[:, None] & (dims < width)[None, :]
    reads = tl.load(found + (part[:, None] * lines + line) * width + dims[None, :], inside, 0.0)
    read = tl.sum(reads * weight[:, None], 0) / total
    tl.store(out + line * width + dims, read.to(out.dtype.element_ty), dims < width)


def attend(
    layer: Layer,
    query: Tensor,
    facts: Tensor,
    keys: Tensor,
    values: Tensor,
    sees: Tensor | None,
    read: Tensor,
    count: int,
) -> None:
    """What rows read from the text and from those of the `count` tree rows that they see."""
    rows, heads, width = query.shape
    kv, slots = layer.kv_heads, keys.shape[2]
    many = min(32, max(4, int(triton.next_power_of_2(slots // SHARE))))
    lines, tile_d = rows * heads, tile(width)
    peaks, totals = torch.empty(2, many + 1, lines, dtype=torch.float32, device=query.device)
    found = torch.empty(many + 1, lines, width, dtype=torch.float32, device=query.device)
    _attend[kv, many + 1](
        query, facts, keys, values, or_other(sees, facts), peaks, totals, found, slots, many, rows,
        0 if sees is None else count, 0 if sees is None else sees.shape[1], width**-0.5 / math.log(2),
        NEW, TEXT_ROWS, SEAT, kv, heads // kv, width, tile(rows * heads // kv), tile_d, STEP, **options(),
    )  # fmt: skip
    _merge[lines,](peaks, totals, found, read, lines, many + 1, width, tile(many + 1), tile_d, **options(warps=1))


# -------------------------------------------------------------------------------------- the children
leaders = topk.leaders


def cut(parcel: Parcel, facts: Tensor, depths: Tensor, ranks: Tensor, deepest: int) -> None:
    """Keep the nodes of largest reach and write what each of them sees."""
    cutting.cut(parcel, facts, depths, ranks, deepest)

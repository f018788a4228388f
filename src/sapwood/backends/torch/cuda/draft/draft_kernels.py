"""Steps of a draft as Triton kernels; the same functions as in `reference`."""
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
# mypy: disallow-untyped-decorators=False, disallow-untyped-calls=False

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from sapwood.backends.torch.cuda.draft import prune_kernel
from sapwood.backends.torch.cuda.draft.device_tree import RoundFields
from sapwood.backends.torch.cuda.draft.eagle_layer import EagleWeights
from sapwood.backends.torch.cuda.draft.handoff_kernels import (
    complete_draft_args as complete_draft_args,
)
from sapwood.backends.torch.cuda.draft.handoff_kernels import write_pass_args as write_pass_args
from sapwood.backends.torch.cuda.draft.prune_kernel import rank_of
from sapwood.backends.torch.cuda.draft.reference import NEW, ROOT_AT, SEQUENCE, TEXT_ROWS
from sapwood.backends.torch.cuda.draft.running_softmax import add_keys, merged, taken
from sapwood.backends.torch.cuda.kernels import linear, topk
from sapwood.backends.torch.cuda.kernels.device_limits import is_hopper, shared_limit
from sapwood.backends.torch.cuda.kernels.launch import launch_next_kernel, options, or_other, wait
from sapwood.backends.torch.cuda.kernels.linear import gathered, product
from sapwood.backends.torch.cuda.kernels.tile_configs import plan_of, share_of
from sapwood.backends.torch.cuda.kernels.topk import tile

STEP = 64  # keys that a program reads at a time, where shared memory holds them
STAGES = 3  # stages of the software pipeline: steps whose loads are under way
CANDIDATES = 128  # of a level below the first, at least: one kernel for trees of all depths
LINES = 32  # of queries below the root, at least: one kernel for levels of few leaves and of many
SHARE = 512  # slots of the text for which one more program is worth it


project = linear.project


def requests_of(column: Tensor) -> int:
    """Requests of a draft, whose column is [n] of one request or [requests, n]."""
    return 1 if column.dim() == 1 else len(column)


def request_stride(column: Tensor) -> int:
    """Stride between the columns of two requests, in words; 0 for one request."""
    return 0 if column.dim() == 1 else column.stride(0)


# --------------------------------------------------------------------------------- rows of the head
@triton.jit
def join(
    token,
    state,
    embedding,
    token_norm,
    state_norm,
    x,
    base,
    row,
    width,
    eps,
    after: tl.constexpr,
    tile_w: tl.constexpr,
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
    wait()
    row = tl.program_id(0)
    token = tl.load(tokens + row)
    join(
        token,
        states + row * width,
        embedding,
        token_norm,
        state_norm,
        x,
        base,
        row,
        width,
        eps,
        after,
        tile_w,
    )


def pair(layer: EagleWeights, tokens: Tensor, states: Tensor, x: Tensor, base: Tensor) -> None:
    """Join the normed embeddings of tokens with normed states."""
    _pair[len(x),](
        tokens, states, layer.embedding, layer.token_norm, layer.state_norm, x, base, layer.width,
        layer.eps,
        layer.after, tile(layer.width), **options(),
    )  # fmt: skip


@triton.jit(
    do_not_specialize=["first", "size", "fan", "before", "above"],
    do_not_specialize_on_alignment=[
        "reach",
        "tokens",
        "opened",
    ],  # levels of any number of leaves share it
)
def _select(
    reach, tokens, states, seen, opened, sees, embedding, token_norm, state_norm, x, base,
    first, size, fan, slots, before, above, pace, width, eps,
    below: tl.constexpr, after: tl.constexpr, step: tl.constexpr, tile_c: tl.constexpr,
    tile_s: tl.constexpr,
    tile_w: tl.constexpr,
):  # fmt: skip
    wait()
    place = tl.program_id(0)
    request = tl.program_id(1)
    row = request * tl.num_programs(0) + place  # of those of all requests
    each = tl.arange(0, tile_c)
    at = tl.arange(0, tile_s)
    rank = rank_of(reach + request * pace, each, size, step, tile_c)
    launch_next_kernel()
    chosen = tl.sum(tl.where((rank == place) & (each < size), each, 0), 0)
    parent = request * above + chosen // fan
    tl.store(opened + request * pace + place, (first + chosen).to(tl.int64))
    bits = tl.where(at == before + place, 1, 0).to(tl.int8)
    if below:
        bits |= tl.load(seen + parent * slots + at, at < slots, 0)
    tl.store(sees + row * slots + at, bits, at < slots)
    token = tl.load(tokens + request * pace + chosen)
    join(
        token,
        states + parent * width,
        embedding,
        token_norm,
        state_norm,
        x,
        base,
        row,
        width,
        eps,
        after,
        tile_w,
    )


def select(
    layer: EagleWeights,
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
    size = reach.shape[-1]
    slots = sees.shape[1]
    requests = requests_of(reach)
    candidates = size if seen is None else max(size, CANDIDATES)
    _select[len(x) // requests, requests](
        reach.view(torch.int64), tokens, states, or_other(seen, sees), opened, sees,
        layer.embedding, layer.token_norm,
        layer.state_norm, x, base, first, size, width, slots, before, len(states) // requests,
        request_stride(reach), layer.width, layer.eps,
        seen is not None,
        layer.after, 32, tile(candidates), tile(slots), tile(layer.width), **options(),
    )  # fmt: skip


# --------------------------------------------------------------------------------------- attention
@triton.jit(do_not_specialize=["m", "each_rows", "depth", "before"])
def _heads(
    x, weight, scalars, angles, keys, values, query, parts, counters, m, k, share, each_rows,
    depth, before, pace, slots,
    new: tl.constexpr, root_at: tl.constexpr, text_rows: tl.constexpr, sequence: tl.constexpr,
    text: tl.constexpr,
    heads: tl.constexpr, kv_heads: tl.constexpr, width: tl.constexpr, even: tl.constexpr,
    tile_m: tl.constexpr, tile_n: tl.constexpr, tile_k: tl.constexpr, split: tl.constexpr,
    soon: tl.constexpr,
):  # fmt: skip
    wait()
    half: tl.constexpr = width // 2
    pairs: tl.constexpr = tile_n // 2  # a tile holds pairs of one head that rotate together
    per_head: tl.constexpr = (half + pairs - 1) // pairs
    tile = tl.program_id(0)
    part = tl.program_id(1)
    block = tl.program_id(2)
    head = tile // per_head
    start = (tile % per_head) * pairs
    rows = block * tile_m + tl.arange(0, tile_m)
    each = tl.arange(0, tile_n)
    dims = start + tl.arange(0, pairs)
    lines = head * width + tl.minimum(start + each // 2, half - 1) + (each % 2) * half
    own = tl.minimum(rows, m - 1) // each_rows * pace  # the scalars of each row's request
    place = rows % each_rows  # of a row among those of its request
    count = tl.load(scalars + own + new)
    start_slot = tl.load(scalars + own + text_rows)
    home = tl.load(scalars + own + sequence)
    if text:
        position = tl.load(scalars + own + root_at) - count + place
        slot = start_slot + place
        live = (rows < m) & (place < count)
    else:
        position = tl.load(scalars + own + root_at) - 1 + depth
        slot = start_slot + count + before + place
        live = rows < m
    there = (rows < m)[:, None] & (dims < half)[None, :]
    angle = angles + tl.maximum(position, 0)[:, None] * width + dims[None, :]
    cosine = tl.load(angle, there, 0.0)
    sine = tl.load(angle + half, there, 0.0)
    first = part * share
    last = tl.minimum(first + share, k)
    sums = product(x, weight, rows, lines, m, k, first, last, even, tile_m, tile_n, tile_k, soon)
    done = True
    if split > 1:
        tiles = tl.num_programs(0)
        counter = block * tiles + tile
        columns = tile * tile_n + each
        sums, done = gathered(
            sums, parts, counters, counter, part, m, rows, columns, tiles * tile_n, split
        )
    if done:
        low, high = tl.split(tl.reshape(sums, (tile_m, pairs, 2)))
        if head < heads + kv_heads:
            low, high = low * cosine - high * sine, high * cosine + low * sine
        low, high = low.to(query.dtype.element_ty), high.to(query.dtype.element_ty)
        if head < heads:
            goal = query + (rows[:, None] * heads + head) * width + dims[None, :]
            tl.store(goal, low, there)
            tl.store(goal + half, high, there)
        else:
            line = (home * kv_heads + (head - heads) % kv_heads) * slots + slot
            spot = line[:, None] * width + dims[None, :]
            if head < heads + kv_heads:
                tl.store(keys + spot, low, there & live[:, None])
                tl.store(keys + spot + half, high, there & live[:, None])
            else:
                tl.store(values + spot, low, there & live[:, None])
                tl.store(values + spot + half, high, there & live[:, None])


def project_heads(
    layer: EagleWeights,
    x: Tensor,
    scalars: Tensor,
    angles: Tensor,
    keys: Tensor,
    values: Tensor,
    query: Tensor,
    depth: int,
    before: int,
) -> None:
    """Queries of the rows, rotated, and their keys and values in place."""
    (m, k), n, heads, kv = x.shape, layer.qkv.shape[0], layer.heads, layer.kv_heads
    plan = plan_of(m, n, k, "plain")
    outputs = min(plan.outputs, triton.next_power_of_2(layer.head_width))
    tiles = (heads + 2 * kv) * triton.cdiv(layer.head_width, outputs)
    split, share = share_of(n, k, "plain")
    room = linear.workspace(x.device, split * m * tiles * outputs)
    _heads[tiles, split, triton.cdiv(m, plan.rows)](
        x, layer.qkv, scalars, angles, keys, values, query, *room, m, k,
        share, m // requests_of(scalars), depth, before, request_stride(scalars),
        keys.shape[2], NEW, ROOT_AT, TEXT_ROWS, SEQUENCE, depth == 0, heads, kv, layer.head_width,
        k % plan.inputs == 0 and share % plan.inputs == 0,
        plan.rows, outputs, plan.inputs, split, plan.soon,
        **options(plan.warps, plan.stages),
    )  # fmt: skip


@triton.jit(do_not_specialize=["rows", "count", "wide"])
def _attend(
    query, scalars, keys, values, sees, out, parts, counters, slots, rows, count, wide, pace, scale,
    new: tl.constexpr, text_rows: tl.constexpr, sequence: tl.constexpr, kv_heads: tl.constexpr,
    group: tl.constexpr,
    width: tl.constexpr, many: tl.constexpr, tile_m: tl.constexpr, tile_d: tl.constexpr,
    step: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(0)
    part = tl.program_id(1)
    request = tl.program_id(2)
    lines = rows * kv_heads * group  # of a request
    query += request * lines * width
    out += request * lines * width
    sees += request * rows * wide
    scalars += request * pace
    parts += request.to(tl.int64) * (many + 1) * lines * (width + 2)
    counters += request * kv_heads
    each = tl.arange(0, tile_m)
    dims = tl.arange(0, tile_d)
    ahead = tl.arange(0, step)
    row = each // group
    live = each < rows * group
    inner = dims < width
    line = row * kv_heads * group + head * group + each % group  # of [rows, heads]
    end = tl.load(scalars + text_rows, cache_modifier=".cg") + tl.load(
        scalars + new, cache_modifier=".cg"
    )
    base = (tl.load(scalars + sequence, cache_modifier=".cg") * kv_heads + head) * slots * width
    ks = keys + base + dims[:, None]
    vs = values + base + dims[None, :]
    share = tl.cdiv(tl.cdiv(end.to(tl.int32), many), step) * step
    first = tl.maximum(part - 1, 0) * share
    last = tl.minimum(first + share, end.to(tl.int32)) if part > 0 else 0
    k, v = taken(ks, vs, (first + ahead) * width, first + ahead < last, inner)
    wait()
    asks = query + line[:, None] * width + dims[None, :]
    mask = live[:, None] & inner[None, :]
    peak = tl.full((tile_m,), float("-inf"), tl.float32)
    total = tl.zeros((tile_m,), tl.float32)
    read = tl.zeros((tile_m, tile_d), tl.float32)
    if part == 0:  # the rows of the tree
        for start in range(0, count, step):
            at = start + ahead
            seen = (
                tl.load(
                    sees + row[:, None] * wide + at[None, :],
                    live[:, None] & (at < count)[None, :],
                    0,
                )
                > 0
            )
            near, told = taken(ks, vs, (end + at) * width, at < count, inner)
            peak, total, read = add_keys(
                tl.load(asks, mask, 0.0), near, told, seen, peak, total, read, scale
            )
    else:
        q = tl.load(asks, mask, 0.0)
        peak, total, read = add_keys(
            q, k, v, (first + ahead < last)[None, :], peak, total, read, scale
        )
        for start in range(first + step, last, step):
            at = start + ahead
            near, told = taken(ks, vs, at * width, at < last, inner)
            peak, total, read = add_keys(
                q, near, told, (at < last)[None, :], peak, total, read, scale
            )
    launch_next_kernel()
    read, total, done = merged(
        read, peak, total, parts, counters + head, part, line, lines, live, mask, dims, width, many
    )  # fmt: skip
    if done:
        read = read / tl.where(live, total, 1.0)[:, None]
        tl.store(out + line[:, None] * width + dims[None, :], read.to(out.dtype.element_ty), mask)


def attend(
    layer: EagleWeights,
    query: Tensor,
    scalars: Tensor,
    keys: Tensor,
    values: Tensor,
    sees: Tensor | None,
    read: Tensor,
    count: int,
) -> None:
    """Attention of the rows over the text and those of the `count` tree rows that they see."""
    requests = requests_of(scalars)
    _, heads, width = query.shape
    rows = len(query) // requests
    kv = layer.kv_heads
    slots = keys.shape[2]
    many = min(32, max(4, int(triton.next_power_of_2(slots // SHARE))))
    lines = max(tile(rows * heads // kv), 0 if sees is None else LINES)
    step, warps = step_of(lines, tile(width)), warps_of(lines)
    room = requests * (many + 1) * rows * heads * (width + 2)
    _attend[kv, many + 1, requests](
        query, scalars, keys, values, or_other(sees, scalars), read,
        *linear.workspace(query.device, room), slots, rows,
        0 if sees is None else count, 0 if sees is None else sees.shape[1], request_stride(scalars),
        width**-0.5 / math.log(2),
        NEW, TEXT_ROWS, SEQUENCE, kv, heads // kv, width, many,
        lines, tile(width), step, **options(warps, STAGES),
    )  # fmt: skip


def step_of(lines: int, width: int) -> int:
    """Keys of one step that fit the shared memory of the device beside queries [lines, width].

    Keys and values of 16 bits are held for each stage, for the first step and for the tree's rows.
    """
    step = STEP
    while step > 16 and 4 * (STAGES + 2) * step * width + 2 * lines * width > shared_limit():
        step //= 2
    return step


def warps_of(lines: int) -> int:
    """Warps of a program; on other devices than a Hopper 4 have too few registers for 64 lines."""
    return 8 if lines >= 64 and not is_hopper() else 4


# ---------------------------------------------------------------------------------------- children
leaders = topk.leaders


def prune(
    round_buffer: RoundFields, scalars: Tensor, depths: Tensor, ranks: Tensor, deepest: int
) -> None:
    """Keep the nodes of largest reach and write their ancestor bits."""
    prune_kernel.prune(round_buffer, scalars, depths, ranks, deepest)

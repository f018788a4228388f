"""Attention of a token tree: a row sees the committed slots of its own seat and its ancestors in the tree.

Rows come in blocks of one seat. A program serves one block, one head of keys and all heads of queries
that share it. It walks the committed slots, then the tree's, where a bit of the row's ancestor words says
what it sees. Longer texts are split among programs, the tree is one more program's, and the last to come
merges what all of them found. The first committed slots are asked for before the queries are there: they were
written long before, and what a program uses first it asks for last.
"""
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
# mypy: disallow-untyped-decorators=False, disallow-untyped-calls=False

from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor

from sapwood.backends.torch.fused.kernels import workspace
from sapwood.backends.torch.fused.launch import WIDEN, let_in, options, wait
from sapwood.backends.torch.fused.qkv import Heads

WORD = 64  # nodes per ancestor word
FIELDS = 5  # of a block: first slot of the seat, committed length, first row, rows, nodes of the tree


@dataclass(frozen=True, slots=True)
class Cut:
    """How attention is cut into programs."""

    rows: int  # of a block, a power of two
    splits: int = (
        1  # programs that share the committed slots of one block and head; with several, one more for the tree
    )
    step: int = 64  # slots at a time
    tail: int = WORD  # nodes at a time, at most a word
    warps: int = 4
    stages: int = 3


@triton.jit
def told(block, blocks):
    """First slot of the seat, committed length, first row, rows and nodes of a block; one of no rows sees nothing."""
    base, length = tl.load(block, cache_modifier=".cg"), tl.load(block + blocks, cache_modifier=".cg").to(tl.int32)
    first = tl.load(block + 2 * blocks, cache_modifier=".cg").to(tl.int32)
    held = tl.load(block + 3 * blocks, cache_modifier=".cg").to(tl.int32)
    nodes = tl.load(block + 4 * blocks, cache_modifier=".cg").to(tl.int32)
    return base, tl.where(held > 0, length, 0), first, held, tl.where(held > 0, nodes, 0)


@triton.jit
def taken(keys, values, away, inside, there):
    """Keys [width, step] and values [step, width] of one step of slots."""
    k = tl.load(keys + away[None, :], inside[None, :] & there[:, None], 0.0)
    return k, tl.load(values + away[:, None], inside[:, None] & there[None, :], 0.0)


@triton.jit
def part_of(length, window, split, splits: tl.constexpr, step: tl.constexpr, windowed: tl.constexpr):
    """The committed slots that one of several programs walks."""
    start = tl.maximum(length - window + 1, 0) if windowed else 0
    share = (length - start + splits * step - 1) // (splits * step) * step
    start += split * share
    return start, tl.minimum(start + share, length)


@triton.jit
def weigh(q, k, v, seen, peak, total, found, scale):
    """Take one step of slots into account."""
    if WIDEN:
        q, k, v = q.to(tl.float32), k.to(tl.float32), v.to(tl.float32)
    scores = tl.where(seen, tl.dot(q, k, input_precision="ieee") * scale, float("-inf"))
    best = tl.maximum(peak, tl.max(scores, 1))
    safe = tl.where(best == float("-inf"), 0.0, best)
    weights, fade = tl.exp2(scores - safe[:, None]), tl.exp2(peak - safe)
    found = tl.dot(weights.to(v.dtype), v, found * fade[:, None], input_precision="ieee")
    return best, total * fade + tl.sum(weights, 1), found


@triton.jit
def over_tree(
    q, keys, values, words, live, there, length, node, nodes, peak, total, found, scale,
    early: tl.constexpr, pace: tl.constexpr, tail: tl.constexpr,
):  # fmt: skip
    """Take the nodes of a tree into account, where it is early those behind the first step."""
    for many in range(tail if early else 0, nodes, tail):
        drafted, said = taken(keys, values, (length + many + node) * pace, many + node < nodes, there)
        word = tl.load(words + many // 64, live, 0)
        peak, total, found = weigh(q, drafted, said, sight(word, many + node), peak, total, found, scale)
    return peak, total, found


@triton.jit
def sight(word, at):
    """Which nodes each row sees, by the bits of its word."""
    return ((word[:, None] >> (at % 64)[None, :].to(tl.int64)) & 1) != 0


@triton.jit
def merged(found, peak, total, parts, counter, mine, line, lines, live, mask, dims, width, splits: tl.constexpr):
    """What all splits + 1 programs that share lines have found, in the one that comes last; True there."""
    place = parts + line[:, None] * width + dims[None, :]  # [splits + 1, lines, width], then peaks, then totals
    peaks = parts + (splits + 1) * lines * width + line
    totals = peaks + (splits + 1) * lines
    here = mine * lines
    tl.store(place + here * width, found, mask)
    tl.store(peaks + here, peak, live)
    tl.store(totals + here, total, live)
    tl.debug_barrier()
    done = tl.atomic_add(counter, 1, sem="acq_rel") == splits
    if done:
        tl.store(counter, 0)
        peak, total, found = tl.zeros_like(peak) + float("-inf"), tl.zeros_like(total), tl.zeros_like(found)
        for part in tl.range(0, splits + 1, loop_unroll_factor=4):
            top = tl.load(peaks + part * lines, live, float("-inf"), cache_modifier=".cg")
            sums = tl.load(totals + part * lines, live, 0.0, cache_modifier=".cg")
            read = tl.load(place + part * lines * width, mask, 0.0, cache_modifier=".cg")
            best = tl.maximum(peak, top)
            safe = tl.where(best == float("-inf"), 0.0, best)
            old, new = tl.exp2(peak - safe), tl.exp2(top - safe)
            peak, total, found = best, total * old + sums * new, found * old[:, None] + read * new[:, None]
    return found, total, done


@triton.jit
def _attend(
    queries, out, parts, counters, pool, words, positions, blocks, plane, scale, window, lines,
    heads: tl.constexpr, kv_heads: tl.constexpr, width: tl.constexpr, group: tl.constexpr, count: tl.constexpr,
    tile_r: tl.constexpr, tile_g: tl.constexpr, tile_d: tl.constexpr, step: tl.constexpr, tail: tl.constexpr,
    splits: tl.constexpr, windowed: tl.constexpr,
):  # fmt: skip
    block, head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    base, length, first, held, nodes = told(blocks + block, tl.num_programs(0))
    index, dims = tl.arange(0, tile_r * tile_g), tl.arange(0, tile_d)
    row, member = first + index // tile_g, index % tile_g
    live, there = (index // tile_g < held) & (member < group), dims < width
    pace: tl.constexpr = kv_heads * width
    keys = pool + base * pace + head * width + dims[:, None]
    values = pool + plane + base * pace + head * width + dims[None, :]
    start, end = part_of(length, window, split, splits, step, windowed)
    at, node = start + tl.arange(0, step), tl.arange(0, tail)
    early: tl.constexpr = tile_r * tile_g < 64  # larger blocks walk far, and need their room for that
    if early:
        k, v = taken(keys, values, at * pace, at < end, there)
    word = tl.load(words + row * count, live, 0)
    wait()
    last: tl.constexpr = splits if splits > 1 else 0  # who looks at the tree
    nodes = tl.where(split == last, nodes, 0)
    if early:  # before the queries, which are used sooner
        drafted, said = taken(keys, values, (length + node) * pace, node < nodes, there)
    line = row * heads + head * group + member
    mask = live[:, None] & there[None, :]
    q = tl.load(queries + line[:, None] * width + dims[None, :], mask, 0.0)
    oldest = tl.load(positions + row, live & windowed, 0).to(tl.int32) - window  # the newest slot that is out of sight
    peak = tl.full((tile_r * tile_g,), float("-inf"), tl.float32)
    total = tl.zeros((tile_r * tile_g,), tl.float32)
    found = tl.zeros((tile_r * tile_g, tile_d), tl.float32)
    if split < splits:
        if early:
            seen = (at < end)[None, :] & ((at[None, :] > oldest[:, None]) | (not windowed))
            peak, total, found = weigh(q, k, v, seen, peak, total, found, scale)
            start += step
        for slot in range(start, end, step):
            at = slot + tl.arange(0, step)
            k, v = taken(keys, values, at * pace, at < end, there)
            seen = (at < end)[None, :] & ((at[None, :] > oldest[:, None]) | (not windowed))
            peak, total, found = weigh(q, k, v, seen, peak, total, found, scale)
    if split == last:
        if early:
            peak, total, found = weigh(q, drafted, said, sight(word, node), peak, total, found, scale)
        peak, total, found = over_tree(
            q, keys, values, words + row * count, live, there, length, node, nodes, peak, total, found, scale,
            early, pace, tail,
        )  # fmt: skip
    let_in()
    done = True
    if splits > 1:
        counter = counters + block * kv_heads + head
        found, total, done = merged(
            found, peak, total, parts, counter, split, line, lines, live, mask, dims, width, splits
        )  # fmt: skip
    if done:
        found = found / tl.where(total > 0, total, 1.0)[:, None]  # rows that are not live see nothing
        tl.store(out + line[:, None] * width + dims[None, :], found.to(out.dtype.element_ty), mask)


def attend(
    queries: Tensor,  # [m, heads, width]
    planes: Tensor,  # [2, ..., slots, kv heads, width] contiguous: keys and values of the layer
    out: Tensor,  # [m, heads, width]
    *,
    heads: Heads,
    blocks: Tensor,  # [FIELDS, blocks] int64; a block of no rows is skipped
    words: Tensor,  # [m, words] int64, bit i of word w: the row sees node 64 w + i
    positions: Tensor,  # [m] int64
    scale: float,  # of a query times a key
    cut: Cut,
    window: int = 0,  # positions a row sees, its own included; 0 for all
) -> None:
    """What each head of each row reads."""
    group, many, lines = heads.queries // heads.keys, blocks.shape[1], queries.shape[0] * heads.queries
    tile_d, (parts, counters) = max(16, triton.next_power_of_2(heads.width)), workspace(queries.device)
    splits = cut.splits
    while splits > 1 and (splits + 1) * lines * (heads.width + 2) > len(parts):
        splits //= 2
    _attend[many, heads.keys, splits + (splits > 1)](
        queries, out, parts, counters, planes, words, positions, blocks, planes.stride(0), scale * LOG2E,
        window, lines, heads.queries, heads.keys, heads.width, group, words.shape[1],
        max(cut.rows, 16 // triton.next_power_of_2(group)), triton.next_power_of_2(group), tile_d, cut.step, cut.tail,
        splits, window > 0, **options(cut.warps, cut.stages),
    )  # fmt: skip


LOG2E = 1.4426950408889634  # weights are powers of two

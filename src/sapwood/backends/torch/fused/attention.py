"""Attention of a token tree: a row sees the committed slots of its own seat and its ancestors in the tree.

Rows come in blocks of one seat. A program serves one block, one head of keys and all heads of queries
that share it. It walks the committed slots, then the tree's, where a bit of the row's ancestor words says
what it sees. Long texts are split among programs, and what they found is merged.
"""
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
# mypy: disallow-untyped-decorators=False, disallow-untyped-calls=False

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from sapwood.backends.torch.fused.launch import WIDEN, options
from sapwood.backends.torch.fused.qkv import Heads

WORD = 64  # nodes per ancestor word
FIELDS = 5  # of a block: first slot of the seat, committed length, first row, rows, nodes of the tree


@dataclass(frozen=True, slots=True)
class Cut:
    """How attention is cut into programs."""

    rows: int  # of a block, a power of two
    splits: int = 1  # programs that share the committed slots of one block and head
    step: int = 64  # slots at a time
    tail: int = WORD  # nodes at a time, at most a word
    warps: int = 4
    stages: int = 3


@triton.jit
def look(q, keys, values, away, seen, inside, peak, total, found, scale):
    """Take one step of slots [step] into account."""
    k = tl.load(keys + away[None, :], inside[None, :], 0.0)
    v = tl.load(values + away[:, None], inside[:, None], 0.0)
    if WIDEN:
        q, k, v = q.to(tl.float32), k.to(tl.float32), v.to(tl.float32)
    scores = tl.where(seen, tl.dot(q, k, input_precision="ieee") * scale, float("-inf"))
    best = tl.maximum(peak, tl.max(scores, 1))
    safe = tl.where(best == float("-inf"), 0.0, best)
    weights, fade = tl.exp2(scores - safe[:, None]), tl.exp2(peak - safe)
    found = tl.dot(weights.to(v.dtype), v, found * fade[:, None], input_precision="ieee")
    return best, total * fade + tl.sum(weights, 1), found


@triton.jit
def _attend(
    queries, out, peaks, totals, pool, words, positions, blocks, plane, scale, window,
    heads: tl.constexpr, kv_heads: tl.constexpr, width: tl.constexpr, group: tl.constexpr, count: tl.constexpr,
    tile_r: tl.constexpr, tile_g: tl.constexpr, tile_d: tl.constexpr, step: tl.constexpr, tail: tl.constexpr,
    splits: tl.constexpr,
):  # fmt: skip
    block, head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    many = tl.num_programs(0)
    base, length = tl.load(blocks + block), tl.load(blocks + many + block).to(tl.int32)
    first, held = tl.load(blocks + 2 * many + block).to(tl.int32), tl.load(blocks + 3 * many + block).to(tl.int32)
    nodes = tl.load(blocks + 4 * many + block).to(tl.int32)
    if held > 0:
        index, dims = tl.arange(0, tile_r * tile_g), tl.arange(0, tile_d)
        row, member = first + index // tile_g, index % tile_g
        live, there = (index // tile_g < held) & (member < group), dims < width
        place = row * (heads * width) + (head * group + member) * width
        q = tl.load(queries + place[:, None] + dims[None, :], live[:, None] & there[None, :], 0.0)
        oldest = tl.load(positions + row, live, 0).to(tl.int32) - window  # the newest slot that is out of sight
        pace: tl.constexpr = kv_heads * width
        keys = pool + base * pace + head * width + dims[:, None]
        values = pool + plane + base * pace + head * width + dims[None, :]
        peak = tl.full((tile_r * tile_g,), float("-inf"), tl.float32)
        total = tl.zeros((tile_r * tile_g,), tl.float32)
        found = tl.zeros((tile_r * tile_g, tile_d), tl.float32)
        start = tl.maximum(length - window + 1, 0)
        share = (length - start + splits * step - 1) // (splits * step) * step
        start += split * share
        end = tl.minimum(start + share, length)
        for slot in range(start, end, step):
            at = slot + tl.arange(0, step)
            seen = (at < end)[None, :] & (at[None, :] > oldest[:, None])
            peak, total, found = look(q, keys, values, at * pace, seen, at < end, peak, total, found, scale)
        if split == splits - 1:
            for node in range(0, nodes, tail):
                word = tl.load(words + row * count + node // 64, live, 0)
                at = node + tl.arange(0, tail)
                seen = ((word[:, None] >> (at % 64)[None, :].to(tl.int64)) & 1) != 0
                away = (length + at) * pace
                peak, total, found = look(q, keys, values, away, seen, at < nodes, peak, total, found, scale)
        mask = live[:, None] & there[None, :]
        if splits == 1:
            found = found / tl.where(total > 0, total, 1.0)[:, None]  # rows that are not live see nothing
            tl.store(out + place[:, None] + dims[None, :], found.to(out.dtype.element_ty), mask)
        else:
            spot = (row * heads + head * group + member) * splits + split
            tl.store(out + spot[:, None] * width + dims[None, :], found, mask)
            tl.store(peaks + spot, peak, live)
            tl.store(totals + spot, total, live)


@triton.jit
def _merge(parts, peaks, totals, out, width: tl.constexpr, tile_d: tl.constexpr, splits: tl.constexpr):
    spot, dims, split = tl.program_id(0), tl.arange(0, tile_d), tl.arange(0, splits)
    peak, total = tl.load(peaks + spot * splits + split), tl.load(totals + spot * splits + split)
    weight = tl.exp2(peak - tl.max(peak, 0))
    there = dims < width
    part = tl.load(parts + (spot * splits + split)[:, None] * width + dims[None, :], there[None, :], 0.0)
    found = tl.sum(part * weight[:, None], 0) / tl.sum(total * weight, 0)
    tl.store(out + spot * width + dims, found.to(out.dtype.element_ty), there)


@dataclass(frozen=True, slots=True)
class Parts:
    """What programs that share a text leave to be merged."""

    found: Tensor  # float32, [rows * heads * splits * width] at least
    peaks: Tensor  # [rows * heads * splits] at least
    totals: Tensor

    @classmethod
    def make(cls, rows: int, heads: Heads, splits: int, device: torch.device) -> "Parts":
        """Room for so many splits."""
        spots = rows * heads.queries * splits
        sizes = (spots * heads.width, spots, spots)
        return cls(*(torch.zeros(size, dtype=torch.float32, device=device) for size in sizes))


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
    parts: Parts | None = None,  # needed for splits
) -> Tensor:
    """What each head of each row reads; returns `out`."""
    group = heads.queries // heads.keys
    tile_d = max(16, triton.next_power_of_2(heads.width))
    split = cut.splits > 1
    if split and parts is None:
        raise ValueError("programs that share a text need room for their parts")
    target, peaks, totals = (parts.found, parts.peaks, parts.totals) if split and parts else (out, out, out)
    _attend[blocks.shape[1], heads.keys, cut.splits](
        queries, target, peaks, totals, planes, words, positions, blocks, planes.stride(0), scale * LOG2E,
        window or NEVER, heads.queries, heads.keys, heads.width, group, words.shape[1],
        max(cut.rows, 16 // triton.next_power_of_2(group)), triton.next_power_of_2(group), tile_d, cut.step, cut.tail,
        cut.splits, **options(cut.warps, cut.stages),
    )  # fmt: skip
    if split:
        spots = queries.shape[0] * heads.queries
        _merge[spots,](target, peaks, totals, out, heads.width, tile_d, cut.splits, **options(2))
    return out


LOG2E = 1.4426950408889634  # weights are powers of two
NEVER = 1 << 30  # a window that no text fills

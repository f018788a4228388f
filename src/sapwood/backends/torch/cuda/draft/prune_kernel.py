"""Prunes a drafted tree to the nodes of largest reach, and writes their ancestor bits."""
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
# mypy: disallow-untyped-decorators=False, disallow-untyped-calls=False

import torch
import triton
import triton.language as tl
from torch import Tensor

from sapwood.backends.torch.cuda.draft.device_tree import ROWS, WORDS, RoundBuffer
from sapwood.backends.torch.cuda.draft.reference import NODES
from sapwood.backends.torch.cuda.kernels.launch import options, wait
from sapwood.backends.torch.cuda.kernels.topk import tile
from sapwood.core.tree import CAPACITY

BLOCK = 32  # nodes that one program ranks


@triton.jit
def rank_of(reach, nodes, size, step: tl.constexpr, block: tl.constexpr):
    """Rank of each of these nodes [block] by reach, earlier ones first on ties."""
    own = tl.load(reach + nodes, nodes < size, -1)
    rank = tl.zeros((block,), tl.int32)
    for start in range(0, size, step):
        others = start + tl.arange(0, step)
        theirs = tl.load(reach + others, others < size, -1)[None, :]
        first = (theirs > own[:, None]) | (
            (theirs == own[:, None]) & (others[None, :] < nodes[:, None])
        )
        rank += tl.sum(first.to(tl.int32), 1)
    return rank


@triton.jit(do_not_specialize=["size"])
def _ranks(reach, ranks, size, step: tl.constexpr, block: tl.constexpr):
    wait()
    nodes = tl.program_id(0) * block + tl.arange(0, block)
    tl.store(ranks + nodes, rank_of(reach, nodes, size, step, block), nodes < size)


@triton.jit(do_not_specialize=["size"])
def _keep(
    ranks, scalars, new, kept, size, known: tl.constexpr, rows: tl.constexpr, tile_n: tl.constexpr
):
    wait()
    nodes = tl.arange(0, tile_n)
    each = tl.arange(0, rows)
    inside = nodes < size
    held = inside & (tl.load(ranks + nodes, inside, size) <= tl.load(scalars + known))
    place = tl.cumsum(held.to(tl.int32), 0) - 1
    tl.store(new + nodes, tl.where(held, place, -1).to(tl.int64), inside)
    tl.store(kept + each, tl.zeros((rows,), tl.int64), each > tl.load(scalars + known))
    tl.store(kept + place, nodes.to(tl.int64), held)


@triton.jit(do_not_specialize=["deepest"])
def _rows(
    new, kept, scalars, grown_tokens, grown_parents, grown_probs, grown_reach, all_depths,
    all_ranks,
    tokens, parents, depths, ranks, probs, reach, seen, deepest,
    known: tl.constexpr, words: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    wait()
    row = tl.program_id(0) * block + tl.arange(0, block)
    used = row <= tl.load(scalars + known)
    node = tl.load(kept + row)
    up = tl.load(grown_parents + node)
    above = tl.where(up < 0, -1, tl.load(new + tl.maximum(up, 0)))
    tl.store(tokens + row, tl.where(used, tl.load(grown_tokens + node), 0))
    tl.store(parents + row, tl.where(used, above, -1))
    tl.store(depths + row, tl.where(used, tl.load(all_depths + node), 0))
    tl.store(ranks + row, tl.where(used, tl.load(all_ranks + node), 0))
    tl.store(probs + row, tl.where(used, tl.load(grown_probs + node), 0.0))
    tl.store(reach + row, tl.where(used, tl.load(grown_reach + node), 0.0))
    index = tl.arange(0, words)
    bits = tl.where((row[:, None] // 64) == index[None, :], one_at(row)[:, None], 0)
    for _ in range(deepest):
        going = used & (up >= 0)
        at = tl.load(new + tl.maximum(up, 0))
        bits |= tl.where(
            going[:, None] & ((at[:, None] // 64) == index[None, :]), one_at(at)[:, None], 0
        )
        up = tl.where(going, tl.load(grown_parents + tl.maximum(up, 0)), -1)
    tl.store(seen + row[:, None] * words + index[None, :], bits)


@triton.jit
def one_at(place):
    """A 64-bit word with the bit of this index set."""
    return tl.full((1,), 1, tl.int64) << (place % 64).to(tl.int64)


def prune(
    round_buffer: RoundBuffer, scalars: Tensor, depths: Tensor, ranks: Tensor, deepest: int
) -> None:
    """Keep the nodes of largest reach, earlier ones first on ties; write rows and ancestor bits."""
    size = len(depths)
    device = depths.device
    order, new = torch.empty(2, size, dtype=torch.int64, device=device)
    reach = round_buffer.words_of("grown_reach")  # bits of non-negative floats sort as ints
    _ranks[triton.cdiv(size, BLOCK),](reach, order, size, 128, BLOCK, **options())
    kept = round_buffer.field("kept")
    tile_n = tile(CAPACITY)  # one kernel for trees of all sizes
    _keep[1,](order, scalars, new, kept, size, NODES, ROWS, tile_n, **options(warps=8))
    grown = (
        round_buffer.field(name)
        for name in ("grown_tokens", "grown_parents", "grown_probs", "grown_reach")
    )
    fields = (
        round_buffer.field(name)
        for name in ("tokens", "parents", "depths", "ranks", "probs", "reach")
    )
    _rows[ROWS // BLOCK,](
        new, kept, scalars, *grown, depths, ranks, *fields, round_buffer.rows.words, deepest,
        NODES, WORDS, BLOCK, **options(),
    )  # fmt: skip

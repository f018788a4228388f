"""Prunes a drafted tree to the nodes of largest reach, and writes their ancestor bits."""
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
# mypy: disallow-untyped-decorators=False, disallow-untyped-calls=False

import torch
import triton
import triton.language as tl
from torch import Tensor

from sapwood.backends.torch.cuda.draft.device_tree import ROWS, WORDS, RoundFields
from sapwood.backends.torch.cuda.draft.reference import NODES, TREE_SIZE
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
def _ranks(
    reach, scalars, ranks, size, pace, scalars_pace,
    limit: tl.constexpr, step: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    wait()
    request = tl.program_id(1)
    nodes = tl.program_id(0) * block + tl.arange(0, block)
    able = able_of(scalars + request * scalars_pace + limit, size)
    rank = rank_of(reach + request * pace, nodes, able, step, block)
    tl.store(ranks + request * size + nodes, rank, nodes < able)


@triton.jit
def able_of(limit, size):
    """Nodes of a request's tree that may be kept: all if its limit is 0."""
    most = tl.load(limit).to(tl.int32)
    return tl.where((most > 0) & (most < size), most, size)


@triton.jit(do_not_specialize=["size"])
def _keep(
    ranks, scalars, new, kept, size, pace, scalars_pace,
    known: tl.constexpr, limit: tl.constexpr, rows: tl.constexpr, tile_n: tl.constexpr,
):  # fmt: skip
    wait()
    request = tl.program_id(0)
    scalars += request * scalars_pace
    ranks += request * size
    new += request * size
    kept += request * pace
    nodes = tl.arange(0, tile_n)
    each = tl.arange(0, rows)
    inside = nodes < able_of(scalars + limit, size)
    held = inside & (tl.load(ranks + nodes, inside, size) <= tl.load(scalars + known))
    place = tl.cumsum(held.to(tl.int32), 0) - 1
    tl.store(new + nodes, tl.where(held, place, -1).to(tl.int64), nodes < size)
    tl.store(kept + each, tl.zeros((rows,), tl.int64), each > tl.load(scalars + known))
    tl.store(kept + place, nodes.to(tl.int64), held)


@triton.jit(do_not_specialize=["size", "deepest"])
def _rows(
    new, kept, scalars, grown_tokens, grown_parents, grown_probs, grown_reach, all_depths,
    all_ranks,
    tokens, parents, depths, ranks, probs, reach, seen, size, deepest, pace, scalars_pace,
    known: tl.constexpr, words: tl.constexpr, block: tl.constexpr, most: tl.constexpr,
):  # fmt: skip
    wait()
    request = tl.program_id(1)
    away = request * pace
    new += request * size
    seen += request * most * words
    kept += away
    scalars += request * scalars_pace
    grown_parents += away
    row = tl.program_id(0) * block + tl.arange(0, block)
    used = row <= tl.load(scalars + known)
    node = tl.load(kept + row)
    up = tl.load(grown_parents + node)
    above = tl.where(up < 0, -1, tl.load(new + tl.maximum(up, 0)))
    tl.store(tokens + away + row, tl.where(used, tl.load(grown_tokens + away + node), 0))
    tl.store(parents + away + row, tl.where(used, above, -1))
    tl.store(depths + away + row, tl.where(used, tl.load(all_depths + node), 0))
    tl.store(ranks + away + row, tl.where(used, tl.load(all_ranks + node), 0))
    tl.store(probs + away + row, tl.where(used, tl.load(grown_probs + away + node), 0.0))
    tl.store(reach + away + row, tl.where(used, tl.load(grown_reach + away + node), 0.0))
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
    round_buffer: RoundFields, scalars: Tensor, depths: Tensor, ranks: Tensor, deepest: int
) -> None:
    """Keep the nodes of largest reach, earlier ones first on ties; write rows and ancestor bits."""
    size = len(depths)
    requests = round_buffer.requests
    paces = round_buffer.pace, 0 if scalars.dim() == 1 else scalars.stride(0)
    order, new = torch.empty(2, requests, size, dtype=torch.int64, device=depths.device)
    reach = round_buffer.words_of("grown_reach")  # bits of non-negative floats sort as ints
    _ranks[triton.cdiv(size, BLOCK), requests](
        reach, scalars, order, size, *paces, TREE_SIZE, 128, BLOCK, **options()
    )
    kept = round_buffer.field("kept")
    tile_n = tile(CAPACITY)  # one kernel for trees of all sizes
    _keep[requests,](
        order, scalars, new, kept, size, *paces, NODES, TREE_SIZE, ROWS, tile_n, **options(warps=8)
    )
    grown = (
        round_buffer.field(name)
        for name in ("grown_tokens", "grown_parents", "grown_probs", "grown_reach")
    )
    fields = (
        round_buffer.field(name)
        for name in ("tokens", "parents", "depths", "ranks", "probs", "reach")
    )
    _rows[ROWS // BLOCK, requests](
        new, kept, scalars, *grown, depths, ranks, *fields, round_buffer.seen, size, deepest,
        *paces, NODES, WORDS, BLOCK, ROWS, **options(),
    )  # fmt: skip

"""The best tokens of each row of logits with their probabilities, as children in a drafted tree.

A program looks at a piece of one row and leaves its best tokens and the sum of its exponentials;
another one per row merges them. A value and its token are packed into one whole number whose order
is: larger value first, then lower token. So each choice is one reduction.
"""
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
# mypy: disallow-untyped-decorators=False, disallow-untyped-calls=False

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from sapwood.backends.torch.cuda.draft.device_tree import RoundFields
from sapwood.backends.torch.cuda.draft.eagle_layer import (
    BANDS,
    CELLS,
    EDGES,
    RANKS,
    EagleWeights,
    band,
)
from sapwood.backends.torch.cuda.draft.reference import ROOT_TOKEN, TABLE
from sapwood.backends.torch.cuda.kernels.launch import launch_next_kernel, options, wait

PIECE = 512  # logits that one program looks at: one warp, for which a reduction is a few shuffles
NONE = tl.constexpr(-0x7FFFFFFFFFFFFFFF)  # below every packed value


@triton.jit
def pack(values, ids):
    """One int64 per pair, ordered by value and then by falling id."""
    bits = (values + 0.0).to(tl.int32, bitcast=True)
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return (ordered.to(tl.int64) << 32) | (0x7FFFFFFF - ids).to(tl.int64)


@triton.jit
def value_of(packed):
    """The value of a packed pair."""
    ordered = (packed >> 32).to(tl.int32)
    return (ordered ^ ((ordered >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def id_of(packed):
    """The id of a packed pair."""
    return 0x7FFFFFFF - (packed & 0xFFFFFFFF).to(tl.int32)


@triton.jit(do_not_specialize=["pieces"])
def _pieces(logits, packed, peaks, sums, vocab, pieces, width: tl.constexpr, tile: tl.constexpr):
    wait()
    row = tl.program_id(0)
    piece = tl.program_id(1)
    ids = piece * tile + tl.arange(0, tile)
    values = tl.load(logits + row.to(tl.int64) * vocab + ids, ids < vocab, float("-inf")).to(
        tl.float32
    )
    launch_next_kernel()
    peak = tl.max(values, 0)
    safe = tl.where(peak == float("-inf"), 0.0, peak)
    here = row * pieces + piece
    tl.store(peaks + here, peak)
    tl.store(sums + here, tl.sum(tl.exp(values - safe), 0))
    pairs = tl.where(ids < vocab, pack(values, ids), NONE)
    for place in range(width):
        best = tl.max(pairs, 0)
        tl.store(packed + here * width + place, best)
        pairs = tl.where(pairs == best, NONE, pairs)


@triton.jit(
    do_not_specialize=["first", "pieces", "level", "each_rows"],
    do_not_specialize_on_alignment=["owners"],
)
def _children(
    packed, peaks, sums, vocabulary, scalars, table, edges, owners, tokens, parents, probs, reach,
    first, pieces, level, each_rows, pace, scalars_pace,
    known: tl.constexpr, root: tl.constexpr, width: tl.constexpr, ranks: tl.constexpr,
    bands: tl.constexpr, count: tl.constexpr, which: tl.constexpr, cells: tl.constexpr,
    tile: tl.constexpr, tile_p: tl.constexpr,
    tile_w: tl.constexpr,
):  # fmt: skip
    wait()
    row = tl.program_id(0)
    request = row // each_rows
    place_of_row = row % each_rows
    scalars += request * scalars_pace
    owners += request * pace
    tokens += request * pace
    parents += request * pace
    probs += request * pace
    reach += request * pace
    table += tl.load(scalars + which) * 2 * cells
    places = tl.arange(0, tile_w)
    at = tl.arange(0, tile_p)
    tops = tl.load(peaks + row * pieces + at, at < pieces, float("-inf"))
    peak = tl.max(tops, 0)
    parts = tl.load(sums + row * pieces + at, at < pieces, 0.0)
    total = peak + tl.log(
        tl.sum(tl.where(tops == float("-inf"), 0.0, parts * tl.exp(tops - peak)), 0)
    )
    each = tl.arange(0, tile)
    pairs = tl.load(packed + row * pieces * width + each, each < pieces * width, NONE)
    launch_next_kernel()
    chosen = tl.full((tile_w,), NONE, tl.int64)
    for place in range(width):
        best = tl.max(pairs, 0)
        chosen = tl.where(places == place, best, chosen)
        pairs = tl.where(pairs == best, NONE, pairs)
    held = (places < width) & (chosen != NONE)
    ids = tl.where(held, id_of(chosen), 0)
    prob = tl.exp((value_of(chosen) - total).to(tl.float64))
    owner = tl.zeros((), tl.int64) if root else tl.load(owners + place_of_row)
    above = tl.full((), 1.0, tl.float64) if root else tl.load(reach + owner)
    bins = tl.zeros((tile_w,), tl.int32)
    for edge in range(count):
        bins += (prob > tl.load(edges + edge)).to(tl.int32)
    cell = (bins * ranks + tl.minimum(places, ranks - 1)) * bands + level
    chance = tl.load(table + 2 * cell, held, 0.0) + tl.load(table + 2 * cell + 1, held, 0.0) * prob
    here = first + place_of_row * width + places
    tl.store(tokens + here, tl.load(vocabulary + ids, held, 0), held)
    tl.store(parents + here, tl.zeros((tile_w,), tl.int64) + owner, held)
    tl.store(probs + here, prob, held)
    tl.store(reach + here, above * tl.minimum(chance, 1.0), held)
    if root:
        tl.store(tokens, tl.load(scalars + known))
        tl.store(parents, -1)
        tl.store(probs, 1.0)
        tl.store(reach, 1.0)


@cache
def edges_of(device: torch.device) -> Tensor:
    """Edges of the bins of confidence on a device."""
    return torch.tensor(EDGES, dtype=torch.float64, device=device)


def leaders(
    layer: EagleWeights,
    logits: Tensor,
    scalars: Tensor,  # [SCALARS] or [requests, SCALARS]
    table: Tensor,  # [CELLS, 2] or [tables, CELLS, 2]
    owners: Tensor | None,  # [rows] or [requests, rows]
    depth: int,
    width: int,
    first: int,
    round_buffer: RoundFields,
    piece: int = PIECE,
) -> None:
    """Add the best tokens of each row to the drafted tree, with probabilities and reach."""
    rows, vocab = logits.shape
    pieces = triton.cdiv(vocab, piece)
    packed = torch.empty(rows, pieces * width, dtype=torch.int64, device=logits.device)
    peaks, sums = torch.empty(2, rows, pieces, dtype=torch.float32, device=logits.device)
    _pieces[rows, pieces](
        logits, packed, peaks, sums, vocab, pieces, width, piece, **options(warps=1)
    )
    fields = (
        round_buffer.field(name)
        for name in ("grown_tokens", "grown_parents", "grown_probs", "grown_reach")
    )
    _children[rows,](
        packed, peaks, sums, layer.vocabulary, scalars, table, edges_of(logits.device),
        scalars if owners is None else owners, *fields, first, pieces, band(depth),
        rows // round_buffer.requests, round_buffer.pace,
        0 if scalars.dim() == 1 else scalars.stride(0), ROOT_TOKEN,
        owners is None, width,
        RANKS, BANDS, len(EDGES), TABLE, CELLS, tile(pieces * width), tile(pieces), tile(width),
        **options(warps=1),
    )  # fmt: skip


def tile(size: int) -> int:
    """The smallest block size that holds this many."""
    return max(16, int(triton.next_power_of_2(size)))

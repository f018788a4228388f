"""Moves the KV slots of an accepted path behind the committed text: one gather over all layers."""
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
# mypy: disallow-untyped-decorators=False, disallow-untyped-calls=False

import triton
import triton.language as tl
from torch import Tensor

from sapwood.backends.torch.cuda.kernels.launch import options, wait

PIECE = 64  # numbers of a slot that one program moves


@triton.jit
def shift(
    pool,
    sources,
    first,
    start,
    count,
    plane,
    width: tl.constexpr,
    tile: tl.constexpr,
    piece: tl.constexpr,
):
    """Copy the slots first + sources [count] of one plane to start, start + 1, ..."""
    index = tl.arange(0, tile)
    dims = tl.program_id(1) * piece + tl.arange(0, piece)
    base = pool + tl.program_id(0).to(tl.int64) * plane + dims[None, :]
    there = (index < count)[:, None] & (dims < width)[None, :]
    source = first + tl.load(sources + index, index < count, 0)
    found = tl.load(base + source[:, None] * width, there, 0.0)
    tl.debug_barrier()  # what is read here may be overwritten below
    tl.store(base + (start + index).to(tl.int64)[:, None] * width, found, there)


@triton.jit(
    do_not_specialize=["first", "start", "count"], do_not_specialize_on_alignment=["sources"]
)
def _move(
    pool, sources, first, start, count, plane, width: tl.constexpr, tile: tl.constexpr,
    piece: tl.constexpr
):  # fmt: skip
    wait()
    shift(pool, sources, first, start, count, plane, width, tile, piece)


@triton.jit
def _keep(pool, path, facts, plane, width: tl.constexpr, tile: tl.constexpr, piece: tl.constexpr):
    wait()
    first = tl.load(facts)
    length = tl.load(facts + 3)
    stay = tl.load(facts + 4)
    stop = tl.load(facts + 5)
    shift(
        pool,
        path + stay,
        first + length,
        first + length + stay,
        stop - stay,
        plane,
        width,
        tile,
        piece,
    )


@triton.jit
def _move_many(pool, table, plane, width: tl.constexpr, tile: tl.constexpr, piece: tl.constexpr):
    wait()
    line = table + tl.program_id(2) * (tile + 2)
    start = tl.load(line)
    shift(pool, line + 2, 0, start, tl.load(line + 1), plane, width, tile, piece)


def move_many(
    pool: Tensor,  # [planes, sequences, slots, kv heads, width] contiguous
    table: Tensor,  # [moves, 2 + tile] int64: first target, count, sources, as slots of all
    tile: int,  # a power of two
) -> None:
    """Run moves within several sequences, whose slots do not overlap."""
    width = pool.shape[3] * pool.shape[4]
    _move_many[pool.shape[0], triton.cdiv(width, PIECE), len(table)](
        pool, table, pool.stride(0), width, tile, PIECE, **options()
    )


def move(
    pool: Tensor,  # [planes, sequences, slots, kv heads, width] contiguous
    sources: Tensor,  # [count] int64, ascending and never below their targets
    first: int,  # slot that sources count from
    start: int,  # slot of the first target
    tile: int,  # a power of two, at least count
) -> None:
    """Copy the slots first + sources of all planes to start, start + 1, ..."""
    width = pool.shape[3] * pool.shape[4]
    _move[pool.shape[0], triton.cdiv(width, PIECE)](
        pool, sources, first, start, len(sources), pool.stride(0), width, tile, PIECE, **options()
    )


def keep(pool: Tensor, path: Tensor, facts: Tensor, tile: int) -> None:
    """Run the pending move of an accepted path, given by `PassArgs`; at most `tile` nodes."""
    width = pool.shape[3] * pool.shape[4]
    _keep[pool.shape[0], triton.cdiv(width, PIECE)](
        pool, path, facts, pool.stride(0), width, tile, PIECE, **options()
    )

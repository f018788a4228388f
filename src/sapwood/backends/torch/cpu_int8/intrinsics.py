"""LLVM intrinsics for compiled code: tiles of int8 products, atomics, PAUSE and prefetch.

Memory is passed by address, so that calls need no array argument for each layer.
"""

from collections.abc import Sequence
from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.extending import intrinsic

from sapwood.backends.torch.cpu_int8.cpu_target import TARGET, TARGETS, X86
from sapwood.backends.torch.cpu_int8.dot_products import DOTS, VnniDots
from sapwood.backends.torch.cpu_int8.pointwise import GRID
from sapwood.backends.torch.cpu_int8.simd import (
    F32,
    I8,
    I16,
    I32,
    I64,
    Carried,
    by_count,
    call,
    inline,
    load,
    loop,
    offset,
    same,
    spread,
    store,
)

BLOCK = 16  # outputs that are computed together
DEEP = 4  # inputs of one dot-product instruction
LINE = BLOCK * DEEP  # bytes of weights of one load
SHARE = 1 / (2 * GRID)  # scale of the remainders of split rows
TILE = (TARGET or TARGETS[0]).rows
# split rows need twice the sums, for which only 32 registers have room
FINE_TILE = TILE if (TARGET or TARGETS[0]).lanes == BLOCK else TILE // 2


# ------------------------------------------------------------------------------------- dot products
def fetch(builder: Any, address: Any) -> None:
    """Prefetch a cache line."""
    where = builder.inttoptr(address, I8.as_pointer())
    call(builder, "llvm.prefetch.p0", ir.VoidType(), where, I32(0), I32(3), I32(1))


def emit_outputs(
    builder: Any,
    dots: VnniDots,
    sums: Sequence[Any],
    scales: Any,
    zeros: Any,
    out: Any,
    apart: Any,
    fine: bool,
) -> None:
    """Subtract the zero point, scale and store the sums of rows; add pairs of fine rows."""
    scale = load(builder, scales, dots.products)
    zero = load(builder, zeros, dots.sums)
    made = [
        builder.fmul(builder.sitofp(dots.centre(builder, total, zero), dots.products), scale)
        for total in sums
    ]
    if fine:
        pairs = zip(made[::2], made[1::2], strict=True)
        part = same(F32, SHARE, dots.lanes)
        made = [builder.fadd(near, builder.fmul(rest, part)) for near, rest in pairs]
    for r, products in enumerate(made):
        store(builder, products, builder.add(out, builder.mul(apart, I64(r))))


def tile_maker(count: int, fine: bool, dots: VnniDots = DOTS) -> Any:
    """Make the kernel of a block's outputs for `count` rows, which reads weights once.

    Fine rows arrive in pairs, rounded row and remainder, whose outputs are added.
    """
    size = 4 * dots.lanes  # bytes of a vector

    def emit(
        builder: Any,
        weights: Any,
        scales: Any,
        zeros: Any,
        depth: Any,
        rows: Any,
        stride: Any,
        out: Any,
        apart: Any,
        ahead: Any,
        pace: Any,
    ) -> None:
        """Multiply rows of bytes, `stride` apart, by a block int8 [depth, BLOCK, DEEP].

        Results are float32, `apart` bytes apart; `pace` bytes a step are prefetched from `ahead`.
        """
        starts = [builder.add(rows, builder.mul(stride, I64(r))) for r in range(count)]

        def body(step: Any, held: Carried) -> Carried:
            fetch(builder, builder.add(ahead, builder.mul(step, pace)))
            here = offset(builder, weights, step, LINE)
            made = []
            parts = [
                dots.prepare(
                    builder, load(builder, builder.add(here, I64(size * i)), dots.sums, size)
                )
                for i in range(dots.parts)
            ]
            for r, start in enumerate(starts):
                four = load(builder, offset(builder, start, step, DEEP), I32, DEEP)
                row = spread(builder, four, dots.lanes)
                made += [
                    dots.add_row(builder, held[r * dots.parts + i], row, part)
                    for i, part in enumerate(parts)
                ]
            return made

        none = [same(I32, 0, dots.lanes)] * (count * dots.parts)
        sums = loop(builder, depth, 1, none, body)
        for i in range(dots.parts):
            scale, zero, target = (
                builder.add(base, I64(size * i)) for base in (scales, zeros, out)
            )
            emit_outputs(builder, dots, sums[i :: dots.parts], scale, zero, target, apart, fine)

    return emit


# a kernel for every number of rows: rows in two tiles take longer than in one
tile = inline(
    by_count(*(tile_maker(count, fine=False) for count in range(1, TILE + 1))),
    types.void,
    *[types.int64] * 11,
)
fine_tile = inline(
    by_count(*(tile_maker(2 * count, fine=True) for count in range(1, FINE_TILE + 1))),
    types.void,
    *[types.int64] * 11,
)


# ------------------------------------------------------------------------------- threads and memory
def emit_add(builder: Any, address: Any, amount: Any) -> Any:
    """Atomic add to an int64; the value before."""
    return builder.atomic_rmw("add", builder.inttoptr(address, I64.as_pointer()), amount, "acq_rel")


def emit_load(builder: Any, address: Any) -> Any:
    """Atomic load of an int64, with acquire order."""
    return builder.load_atomic(builder.inttoptr(address, I64.as_pointer()), "acquire", 8)


def emit_pause(builder: Any) -> None:
    """PAUSE instruction of a spin loop; nothing on processors that have none."""
    if X86:
        call(builder, "llvm.x86.sse2.pause", ir.VoidType())


add_atomic = inline(emit_add, types.int64, types.int64, types.int64)
load_atomic = inline(emit_load, types.int64, types.int64)
pause = inline(emit_pause, types.void)
yield_core: Any = types.ExternalFunction("sched_yield", types.int32())


def pointer_maker(kind: Any, number: Any) -> Any:
    """Make a cast from an address to a pointer, for `carray`."""

    def emit(builder: Any, address: Any) -> Any:
        return builder.inttoptr(address, kind.as_pointer())

    pointer: Any = types.CPointer
    return inline(emit, pointer(number), types.int64)


floats_at = pointer_maker(F32, types.float32)
shorts_at = pointer_maker(I16, types.int16)
integers_at = pointer_maker(I64, types.int64)


def lend(_: Any, held: Any) -> Any:
    """A named tuple of arrays without reference counts, which threads would contend for."""

    def emit(context: Any, builder: Any, _: Any, arguments: Any) -> Any:
        [found] = arguments
        for i, kind in enumerate(held.types):
            if isinstance(kind, types.Array):
                array = context.make_array(kind)(context, builder, builder.extract_value(found, i))
                array.meminfo = ir.Constant(array.meminfo.type, None)
                array.parent = ir.Constant(array.parent.type, None)
                found = builder.insert_value(found, array._getvalue(), i)
        return found

    return held(held), emit


borrow: Any = intrinsic(lend)

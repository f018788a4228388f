"""Instructions that compiled Python cannot spell: eight-bit dot products, atomic counters, a polite wait.

Memory is named by address, so that layers of any number and shape need no arrays of their own in the calls.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from llvmlite import binding, ir  # type: ignore[import-untyped]
from numba import types
from numba.extending import intrinsic

from sapwood.backends.torch.packed.kernels import GRID
from sapwood.backends.torch.packed.vectors import (
    F32,
    I8,
    I16,
    I32,
    I64,
    Carried,
    call,
    inline,
    load,
    loop,
    offset,
    same,
    spread,
    store,
    wide,
)

BLOCK = 16  # outputs whose sums are made side by side
DEEP = 4  # inputs that one instruction multiplies and adds up
LINE = BLOCK * DEEP  # bytes of weights that are read at once
SHARE = 1 / (2 * GRID)  # of the second parts of fine rows


def lanes() -> int:
    """Sums that one dot-product instruction makes; 0 where the processor has none."""
    found = binding.get_host_cpu_features()
    if found.get("avx512vnni"):
        return 16
    return 8 if found.get("avxvnni") else 0


LANES = lanes()
PLACES = LANES or BLOCK
PARTS = BLOCK // PLACES  # instructions for the sums of a block
SUMS, PRODUCTS = wide(I32, PLACES), wide(F32, PLACES)
DOT = f"llvm.x86.avx512.vpdpbusd.{32 * PLACES}"


# ------------------------------------------------------------------------------------- dot products
def fetch(builder: Any, address: Any) -> None:
    """Have a line of memory brought to the caches."""
    where = builder.inttoptr(address, I8.as_pointer())
    call(builder, "llvm.prefetch.p0", ir.VoidType(), where, I32(0), I32(3), I32(1))


def tile_maker(count: int, fine: bool) -> Any:
    """The products of a block for `count` rows at once, so that weights are read once for all of them.

    Fine rows come in pairs, what the grid holds and what it leaves, and are joined.
    """

    def emit(
        builder: Any, weights: Any, scales: Any, zeros: Any, depth: Any, rows: Any, stride: Any, out: Any, apart: Any,
        ahead: Any, pace: Any,
    ) -> None:  # fmt: skip
        """Rows uint8, `stride` bytes apart, times a block int8 [depth, BLOCK, DEEP]: float32, `apart` bytes apart.

        Meanwhile `pace` bytes a step are fetched from `ahead` on.
        """
        starts = [builder.add(rows, builder.mul(stride, I64(r))) for r in range(count)]

        def body(step: Any, held: Carried) -> Carried:
            fetch(builder, builder.add(ahead, builder.mul(step, pace)))
            here, made = offset(builder, weights, step, LINE), []
            parts = [load(builder, builder.add(here, I64(4 * PLACES * i)), SUMS, 4 * PLACES) for i in range(PARTS)]
            for r, start in enumerate(starts):
                row = spread(builder, load(builder, offset(builder, start, step, DEEP), I32, DEEP), PLACES)
                made += [call(builder, DOT, SUMS, held[r * PARTS + i], row, part) for i, part in enumerate(parts)]
            return made

        sums = loop(builder, depth, 1, [same(I32, 0, PLACES)] * (count * PARTS), body)
        for i in range(PARTS):
            scale, zero, target = (builder.add(base, I64(4 * PLACES * i)) for base in (scales, zeros, out))
            settle(builder, sums[i::PARTS], scale, zero, target, apart)

    def settle(builder: Any, sums: Sequence[Any], scales: Any, zeros: Any, out: Any, apart: Any) -> None:
        """From sums to products."""
        scale, zero = load(builder, scales, PRODUCTS), load(builder, zeros, SUMS)
        made = [builder.fmul(builder.sitofp(builder.sub(total, zero), PRODUCTS), scale) for total in sums]
        if fine:
            pairs, part = zip(made[::2], made[1::2], strict=True), same(F32, SHARE, PLACES)
            made = [builder.fadd(near, builder.fmul(rest, part)) for near, rest in pairs]
        for r, products in enumerate(made):
            store(builder, products, builder.add(out, builder.mul(apart, I64(r))))

    return inline(emit, types.void, *[types.int64] * 10)


# one for every number of rows: what is left over in two tiles would take longer than eight rows in one
tile_1, tile_2, tile_3, tile_4, tile_5, tile_6, tile_7, tile_8 = (
    tile_maker(count, fine=False) for count in range(1, 9)
)
fine_2, fine_4, fine_6, fine_8 = (tile_maker(count, fine=True) for count in (2, 4, 6, 8))


# ------------------------------------------------------------------------------- threads and memory
def emit_add(builder: Any, address: Any, amount: Any) -> Any:
    """Add to an int64 that threads share; what it was before."""
    return builder.atomic_rmw("add", builder.inttoptr(address, I64.as_pointer()), amount, "acq_rel")


def emit_look(builder: Any, address: Any) -> Any:
    """An int64 that threads share; what was written before it is there as well."""
    return builder.load_atomic(builder.inttoptr(address, I64.as_pointer()), "acquire", 8)


def emit_pause(builder: Any) -> None:
    """Tell the core that it waits for another."""
    call(builder, "llvm.x86.sse2.pause", ir.VoidType())


add_atomic = inline(emit_add, types.int64, types.int64, types.int64)
load_atomic = inline(emit_look, types.int64, types.int64)
pause = inline(emit_pause, types.void)
give_way: Any = types.ExternalFunction("sched_yield", types.int32())  # let another thread have the core


def pointer_maker(kind: Any, number: Any) -> Any:
    """From an address to a pointer, which `carray` makes an array of."""

    def emit(builder: Any, address: Any) -> Any:
        return builder.inttoptr(address, kind.as_pointer())

    pointer: Any = types.CPointer
    return inline(emit, pointer(number), types.int64)


floats_at, shorts_at = pointer_maker(F32, types.float32), pointer_maker(I16, types.int16)


def lend(_: Any, held: Any) -> Any:
    """A named tuple whose arrays count no owners: threads that pass them on would fight over the counters."""

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


def address(array: np.ndarray[Any, Any]) -> int:
    """Where an array begins."""
    return int(array.ctypes.data)

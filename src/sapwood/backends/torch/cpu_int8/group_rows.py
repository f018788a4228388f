"""Quantises rows in groups of 32 inputs, in LLVM IR: the rows that `block_tile` multiplies."""

from typing import Any

from numba import types

from sapwood.backends.torch.cpu_int8.block_tile import (
    FINE,
    GROUP,
    LOW_BITS,
    LOW_PARTS,
    MIDDLE,
    STEP,
    SUM,
)
from sapwood.backends.torch.cpu_int8.pointwise import GRID
from sapwood.backends.torch.cpu_int8.simd import (
    F32,
    I8,
    I32,
    I64,
    WIDE,
    call,
    greater,
    inline,
    load_some,
    same,
    spread,
    store,
    valid,
    wide,
)

LEVELS = GRID << LOW_BITS  # largest integer of a row with low parts


def emit_group(builder: Any, row: Any, count: Any, bound: Any, out: Any) -> None:
    """Quantise `count` elements of a group, float32, and write it at `out`; the rest are zeros.

    It has 15 bits where its largest magnitude is above `bound`, else 8.
    """
    vectors = []
    for first in range(0, GROUP, WIDE):
        mask = valid(builder, builder.sub(count, I64(first)))
        vectors.append(load_some(builder, builder.add(row, I64(4 * first)), F32, mask, 0.0))
    sizes = [call(builder, "llvm.fabs.v16f32", wide(F32), values) for values in vectors]
    # magnitudes have the order of their bits
    bits = builder.bitcast(greater(builder, *sizes), wide(I32))
    largest = builder.bitcast(call(builder, "llvm.vector.reduce.umax.v16i32", I32, bits), F32)
    fine = builder.fcmp_ordered(">", largest, bound)
    any_ = builder.fcmp_ordered(">", largest, F32(0.0))
    levels = builder.select(fine, F32(float(LEVELS)), F32(float(GRID)))
    back = spread(builder, builder.select(any_, builder.fdiv(levels, largest), F32(0.0)))
    shift = spread(builder, builder.select(fine, I32(LOW_BITS), I32(0)))
    half = spread(builder, builder.select(fine, I32(1 << (LOW_BITS - 1)), I32(0)))
    totals = same(I32, 0)
    for n, values in enumerate(vectors):
        near = call(builder, "llvm.rint.v16f32", wide(F32), builder.fmul(values, back))
        whole = builder.fptosi(near, wide(I32))
        totals = builder.add(totals, whole)
        # the low part lies around zero
        high = builder.ashr(builder.add(whole, half), shift)
        low = builder.sub(whole, builder.shl(high, shift))
        for part, where in ((high, 0), (low, LOW_PARTS)):
            there = builder.add(out, I64(where + WIDE * n))
            store(builder, builder.trunc(part, wide(I8)), there)
    total = call(builder, "llvm.vector.reduce.add.v16i32", I32, totals)
    # exactly a multiple of the step of 15 bits, so both give a sum the same bits
    rest = builder.select(fine, F32(1.0), F32(float(1 << LOW_BITS)))
    step = builder.fmul(builder.fdiv(largest, F32(float(LEVELS))), rest)
    fields = {
        STEP: step,
        SUM: builder.fmul(step, builder.sitofp(total, F32)),
        MIDDLE: builder.sub(I32(0), total),
        FINE: builder.zext(fine, I32),
    }
    for where, value in fields.items():
        store(builder, value, builder.add(out, I64(where)))


put_group = inline(emit_group, types.void, types.int64, types.int64, types.float32, types.int64)

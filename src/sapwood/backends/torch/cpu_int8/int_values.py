"""Integer weighted sums of values, two keys to an instruction.

Sums are exact in any order, so they have the same bits as the float32 sums of `attention`.
"""

from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types

from sapwood.backends.torch.cpu_int8 import simd as v
from sapwood.backends.torch.cpu_int8.dot_products import DOTS, VnniDots
from sapwood.backends.torch.cpu_int8.int_attention import HEADS, STRIP
from sapwood.backends.torch.cpu_int8.simd import (
    I16,
    I32,
    I64,
    Carried,
    load,
    offset,
    same,
)


def interleave_mask(half: int, lanes: int) -> ir.Constant:
    """Shuffle mask that interleaves one half of every eight int16 of two vectors."""
    eights = range(0, 2 * lanes, 8)
    apart = (0, 2 * lanes)
    return ir.Constant(
        v.wide(I32, 2 * lanes),
        [at + 4 * half + i + start for at in eights for i in range(4) for start in apart],
    )


def in_order(half: int, lanes: int) -> ir.Constant:
    """Shuffle mask that restores the element order of one half of the sums."""
    fours = range(half * lanes // 8, (half + 1) * lanes // 8)
    return ir.Constant(
        v.wide(I32, lanes),
        [start + 4 * at + i for at in fours for start in (0, lanes) for i in range(4)],
    )


def int_sums_maker(places: int, dots: VnniDots = DOTS) -> Any:
    """Make the kernel of int16 weighted sums for several heads, two keys at a time."""
    lanes = dots.lanes
    count = STRIP // (2 * lanes)  # vectors of a value
    shorts = v.wide(I16, 2 * lanes)

    def emit(
        builder: Any, weights: Any, apart: Any, values: Any, size: Any, keys: Any, out: Any
    ) -> None:
        """Add weights [places, apart] times STRIP elements of values, `size` bytes apart."""
        rows = [offset(builder, weights, builder.mul(apart, I64(p)), 2) for p in range(places)]
        even = builder.and_(keys, I64(-2))

        def add(first: Any, second: Any, pairs: list[Any], held: Carried) -> Carried:
            """Add the products of two values to the sums."""
            both = []
            for i in range(count):
                two = [
                    load(builder, builder.add(key, I64(4 * lanes * i)), shorts)
                    for key in (first, second)
                ]
                both += [
                    builder.bitcast(
                        builder.shuffle_vector(*two, interleave_mask(half, lanes)), dots.sums
                    )
                    for half in (0, 1)
                ]
            wide = [v.spread(builder, pair, lanes) for pair in pairs]
            terms = [(value, pair) for pair in wide for value in both]
            return [
                dots.add_shorts(builder, total, *term)
                for total, term in zip(held, terms, strict=True)
            ]

        def body(key: Any, held: Carried) -> Carried:
            here = builder.add(values, builder.mul(key, size))
            pairs = [load(builder, offset(builder, row, key, 2), I32) for row in rows]
            return add(here, builder.add(here, size), pairs, held)

        def rest(_: Any, held: Carried) -> Carried:
            here = builder.add(values, builder.mul(even, size))
            pairs = [
                builder.zext(load(builder, offset(builder, row, even, 2), I16), I32) for row in rows
            ]
            return add(here, here, pairs, held)

        sums = v.loop(builder, even, 2, [same(I32, 0, lanes)] * (places * 2 * count), body)
        sums = v.loop(builder, builder.sub(keys, even), 1, sums, rest)
        for i in range(len(sums)):
            total = builder.shuffle_vector(sums[i & -2], sums[i | 1], in_order(i & 1, lanes))
            target = builder.add(out, I64(4 * lanes * i))
            v.store(
                builder,
                builder.fadd(
                    load(builder, target, dots.products), builder.sitofp(total, dots.products)
                ),
                target,
            )

    return emit


int_sums = v.inline(
    v.by_count(*map(int_sums_maker, range(1, HEADS + 1))), types.void, *[types.int64] * 7
)

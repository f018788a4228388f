"""Vector kernels of integer attention: products, softmax weights and float sums.

The steps are those of `attention`, in the same order where order matters, so both give the same
bits. Keys and values are int16 [keys, head width], queries and weights int16, products float32.
"""

from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types

from sapwood.backends.torch.cpu_int8 import simd as v
from sapwood.backends.torch.cpu_int8.dot_products import DOTS, VnniDots
from sapwood.backends.torch.cpu_int8.pointwise import FAR, UNIT
from sapwood.backends.torch.cpu_int8.simd import (
    F32,
    I8,
    I16,
    I32,
    I64,
    WIDE,
    Carried,
    Mask,
    call,
    load,
    offset,
    same,
)

WIDTHS = (64, 128)  # head widths of these kernels
FOUND = 1 << 32  # above any index of a key: packs a count and an index into one number
SHORT = (1 << 15) - 1  # largest int16
STRIP = 64  # elements of a value that are summed at once
HEADS = 4  # heads whose weighted sums are computed together
FOUR = 4  # elements of a shuffle lane


# ---------------------------------------------------------------------------------------- products
def fold(builder: Any, sums: list[Any], words: "IntKeys | FloatKeys") -> Any:
    """Horizontal sums of as many vectors as they have lanes, as one vector.

    Neighbours inside a shuffle lane of four are added first, since such shuffles are quick, then
    whole lanes.
    """
    count = len(sums)
    for size in (1, 1, FOUR, FOUR):
        if len(sums) > 1:
            first, second = neighbours(count, size)
            pairs = list(zip(sums[::2], sums[1::2], strict=True))
            sums = [
                words.add(
                    builder,
                    builder.shuffle_vector(*two, first),
                    builder.shuffle_vector(*two, second),
                )
                for two in pairs
            ]
    return sums[0]


def neighbours(count: int, size: int) -> list[ir.Constant]:
    """Shuffle masks of the even and odd elements, or fours, of two vectors."""
    room = FOUR if size == 1 else count  # elements among which pairs lie: a lane, or the vector
    places = [
        vector * count + start + at
        for start in range(0, count, room)
        for vector in (0, 1)
        for at in range(room)
    ]
    return [
        ir.Constant(v.wide(I32, count), [at for at in places if at // size % 2 == side])
        for side in (0, 1)
    ]


class IntKeys:
    """Dot products of int16 queries and keys."""

    size = 2  # bytes of a number

    def __init__(self, dots: VnniDots = DOTS) -> None:
        self.dots = dots
        self.count = dots.lanes  # sums side by side
        self.kind = dots.sums  # what is loaded at once
        self.zero = same(I32, 0, dots.lanes)

    def add(self, builder: Any, left: Any, right: Any) -> Any:
        """Sum of two sums."""
        return builder.add(left, right)

    def dot(self, builder: Any, total: Any, query: Any, key: Any) -> Any:
        """Total plus products."""
        return self.dots.add_shorts(builder, total, query, key)

    def settle(self, builder: Any, total: Any) -> Any:
        """Sums as float32."""
        vector = isinstance(total.type, ir.VectorType)
        return builder.sitofp(total, self.dots.products if vector else F32)

    def sum(self, builder: Any, total: Any) -> Any:
        """The sum of sums side by side."""
        return call(builder, f"llvm.vector.reduce.add.v{self.count}i32", I32, total)


class FloatKeys:
    """Dot products of float32 queries and keys."""

    size = 4
    count = WIDE
    kind = v.wide(F32)
    zero = same(F32, 0.0)

    def add(self, builder: Any, left: Any, right: Any) -> Any:
        """Sum of two sums."""
        return builder.fadd(left, right)

    def dot(self, builder: Any, total: Any, query: Any, key: Any) -> Any:
        """Total plus products."""
        return call(builder, "llvm.fma.v16f32", self.kind, query, key, total)

    def settle(self, builder: Any, total: Any) -> Any:
        """Sums as they are."""
        return total

    def sum(self, builder: Any, total: Any) -> Any:
        """The sum of sums side by side."""
        return v.total(builder, total)


def products_maker(width: int, words: IntKeys | FloatKeys) -> Any:
    """Make the kernel of products of queries and keys for one width and type."""
    # bytes of a key, and of what is loaded at once
    size = words.size * width
    step = 4 * words.count

    def emit(
        builder: Any, queries: Any, places: Any, keys: Any, count: Any, out: Any, apart: Any
    ) -> None:
        """Products of queries [places, width] and keys [count, width], rows `apart` floats."""
        full = builder.and_(count, I64(-WIDE))

        def load_all(address: Any) -> list[Any]:
            return [
                load(builder, builder.add(address, I64(step * i)), words.kind)
                for i in range(size // step)
            ]

        def dot(query: list[Any], key: Any) -> Any:
            total = words.zero
            for left, right in zip(query, load_all(key), strict=True):
                total = words.dot(builder, total, left, right)
            return total

        def each(first: Any, many: int) -> Carried:
            """Multiply some keys by all queries."""
            here = offset(builder, keys, first, size)

            def body(place: Any, _: Carried) -> Carried:
                query = load_all(offset(builder, queries, place, size))
                target = offset(builder, out, builder.add(builder.mul(place, apart), first), 4)
                sums = [dot(query, builder.add(here, I64(size * i))) for i in range(many)]
                if many == 1:
                    v.store(builder, words.settle(builder, words.sum(builder, sums[0])), target)
                    return []
                for i in range(0, many, words.count):
                    made = words.settle(builder, fold(builder, sums[i : i + words.count], words))
                    v.store(builder, made, builder.add(target, I64(4 * i)))
                return []

            return v.loop(builder, places, 1, [], body)

        v.loop(builder, full, WIDE, [], lambda index, _: each(index, WIDE))
        v.loop(
            builder,
            builder.sub(count, full),
            1,
            [],
            lambda index, _: each(builder.add(index, full), 1),
        )

    return v.inline(emit, types.void, *[types.int64] * 6)


products_64, products_128 = (products_maker(width, IntKeys()) for width in WIDTHS)
float_products_64, float_products_128 = (products_maker(width, FloatKeys()) for width in WIDTHS)


# ----------------------------------------------------------------------------------------- weights
def measure_maker(masked: bool) -> Any:
    """Make the kernel that scales products and finds the largest; `masked` masks keys."""

    def emit(
        builder: Any, row: Any, count: Any, step: Any, keys: Any, values: Any, seen: Any, marks: Any
    ) -> None:
        """Scale row [count]; marks [3] <- largest, largest step of values, visible keys."""
        steps = v.spread(builder, step)
        far = same(F32, float(FAR))
        old = [load(builder, builder.add(marks, I64(4 * i)), F32) for i in range(3)]

        def body(index: Any, mask: Mask, held: Carried) -> Carried:
            def numbers(address: Any) -> Any:
                return v.load_some(builder, offset(builder, address, index, 4), F32, mask, 0.0)

            made = builder.fmul(numbers(row), builder.fmul(numbers(keys), steps))
            widths = numbers(values)
            found = mask
            if masked:
                flags = v.load_some(builder, offset(builder, seen, index, 1), I8, mask, 0)
                found = builder.icmp_unsigned("!=", flags, same(I8, 0))
            if found is not None:
                made = builder.select(found, made, far)
                widths = builder.select(found, widths, same(F32, 0.0))
            v.store_some(builder, made, offset(builder, row, index, 4), mask)
            one = same(F32, 1.0) if found is None else builder.uitofp(found, v.wide(F32))
            return [
                v.greater(builder, made, held[0]),
                v.greater(builder, widths, held[1]),
                builder.fadd(held[2], one),
            ]

        start = [far, same(F32, 0.0), same(F32, 0.0)]
        largest, widest, ones = v.sweep(builder, count, start, body)
        seen_here = v.total(builder, ones)
        new = [
            v.greater(builder, v.top(builder, largest), old[0]),
            v.greater(builder, v.top(builder, widest), old[1]),
        ]
        for i, value in enumerate([*new, builder.fadd(old[2], seen_here)]):
            v.store(builder, value, builder.add(marks, I64(4 * i)))

    takes = [types.int64, types.int64, types.float32, *[types.int64] * 4]
    return v.inline(emit, types.void, *takes)


measure, measure_seen = map(measure_maker, (False, True))


def emit_decay(builder: Any, row: Any, count: Any, largest: Any) -> Any:
    """Replace row by exp(row - largest), as `exponentiate`; the sum in 1 / UNIT, int64."""
    most = v.spread(builder, largest)
    floats = v.wide(F32)
    ints = v.wide(I32)
    terms = (8.9893397e-3, 5.5826318e-2, 2.4015361e-1, 6.9315308e-1, 9.9999994e-1)

    def body(index: Any, mask: Mask, held: Carried) -> Carried:
        place = offset(builder, row, index, 4)
        below = builder.fsub(v.load_some(builder, place, F32, mask, float(FAR)), most)
        y = v.greater(
            builder, builder.fmul(below, same(F32, 1.4426950408889634)), same(F32, -126.0)
        )
        whole = call(builder, "llvm.floor.v16f32", floats, y)
        part = builder.fsub(y, whole)
        value = same(F32, 1.8775767e-3)
        for term in terms:
            value = builder.fadd(builder.fmul(value, part), same(F32, term))
        bits = builder.shl(builder.add(builder.fptosi(whole, ints), same(I32, 127)), same(I32, 23))
        made = builder.fmul(value, builder.bitcast(bits, floats))
        v.store_some(builder, made, place, mask)
        steps = call(builder, "llvm.rint.v16f32", floats, builder.fmul(made, same(F32, UNIT)))
        # sums of 1 / 16 of the keys stay below 2^32
        return [builder.add(held[0], builder.fptosi(steps, ints))]

    [total] = v.sweep(builder, count, [same(I32, 0)], body)
    return call(builder, "llvm.vector.reduce.add.v16i64", I64, builder.zext(total, v.wide(I64)))


def emit_portion(builder: Any, row: Any, count: Any, values: Any, share: Any, out: Any) -> Any:
    """Write int16 weights [count] for values with these steps [count], SHORT at most.

    Returns the number of overflows times FOUND, plus the index of the last one.
    """
    shares = v.spread(builder, share)
    ints = v.wide(I32)
    places = ir.Constant(v.wide(I32), list(range(WIDE)))

    def body(index: Any, mask: Mask, held: Carried) -> Carried:
        sizes = v.load_some(builder, offset(builder, values, index, 4), F32, mask, 0.0)
        terms = v.load_some(builder, offset(builder, row, index, 4), F32, mask, 0.0)
        made = call(
            builder,
            "llvm.rint.v16f32",
            v.wide(F32),
            builder.fmul(terms, builder.fmul(sizes, shares)),
        )
        whole = builder.fptosi(made, ints)
        more = builder.icmp_signed(">", whole, same(I32, SHORT))
        kept = builder.trunc(builder.select(more, same(I32, SHORT), whole), v.wide(I16))
        v.store_some(builder, kept, offset(builder, out, index, 2), mask)
        here = builder.add(v.spread(builder, builder.trunc(index, I32)), places)
        return [builder.add(held[0], builder.zext(more, ints)), builder.select(more, here, held[1])]

    found = v.sweep(builder, count, [same(I32, 0)] * 2, body)
    ways = zip(("add", "umax"), found, strict=True)
    many, last = (
        builder.zext(call(builder, f"llvm.vector.reduce.{way}.v16i32", I32, part), I64)
        for way, part in ways
    )
    return builder.add(builder.mul(many, I64(FOUND)), last)


decay = v.inline(emit_decay, types.int64, types.int64, types.int64, types.float32)
portion = v.inline(emit_portion, types.int64, *[types.int64] * 3, types.float32, types.int64)


# -------------------------------------------------------------------------------------------- sums
def float_sums_maker(places: int) -> Any:
    """Make the kernel of float32 weighted sums for several heads, which read values once."""
    count = STRIP // WIDE
    floats = v.wide(F32)

    def emit(
        builder: Any, weights: Any, apart: Any, values: Any, size: Any, keys: Any, out: Any
    ) -> None:
        """Add weights [places, apart] times STRIP elements of values, `size` bytes apart."""
        rows = [offset(builder, weights, builder.mul(apart, I64(p)), 4) for p in range(places)]
        targets = [builder.add(out, I64(4 * WIDE * i)) for i in range(places * count)]

        def body(key: Any, held: Carried) -> Carried:
            here = builder.add(values, builder.mul(key, size))
            made = []
            parts = [
                load(builder, builder.add(here, I64(4 * WIDE * i)), floats) for i in range(count)
            ]
            for p, row in enumerate(rows):
                weight = v.spread(builder, load(builder, offset(builder, row, key, 4), F32))
                for i, value in enumerate(parts):
                    made.append(
                        call(builder, "llvm.fma.v16f32", floats, weight, value, held[p * count + i])
                    )
            return made

        start = [load(builder, target, floats) for target in targets]
        for total, target in zip(v.loop(builder, keys, 1, start, body), targets, strict=True):
            v.store(builder, total, target)

    return emit


float_sums = v.inline(
    v.by_count(*map(float_sums_maker, range(1, HEADS + 1))), types.void, *[types.int64] * 7
)

"""Dot products of int8 rows with weights of 4 or 8 bits in groups of 32 inputs, in LLVM IR.

Memory is read from its beginning to its end. A block of sixteen outputs is pieces of one or two
groups: a line of float16, scales and minima of a group or the scales of two, then the weights as
unsigned integers in fours of inputs. Of 4-bit weights, a line holds two fours: one in the low
halves of its bytes, the other, sixteen inputs further, in the high halves, as in GGUF files.
"""

from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types

from sapwood.backends.torch.cpu_int8.intrinsics import (
    BLOCK,
    DEEP,
    DOT,
    LINE,
    PARTS,
    PLACES,
    PRODUCTS,
    SUMS,
    fetch,
)
from sapwood.backends.torch.cpu_int8.simd import (
    F32,
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
    wide,
)

GROUP = 32  # inputs that share a scale
PAIR = 2 * GROUP  # rows are padded to whole pairs of groups
FOURS = GROUP // DEEP
HALVES = wide(ir.HalfType(), PLACES)
LOW = 0x0F0F0F0F  # low halves of four bytes
STEPS = 2 * BLOCK  # bytes of one float16 for each output
RECORD = 12  # bytes that describe a group of a row: step and sum in float32, minus the integer sum
MIN4, SIGNED4, SIGNED8 = range(3)  # formats: 4 bits and a minimum; 4 and 8 bits around the middle
BITS = {MIN4: 4, SIGNED4: 4, SIGNED8: 8}
SPAN = {MIN4: 1, SIGNED4: 2, SIGNED8: 2}  # groups of a piece: its first line is full


def group_bytes(form: int) -> int:
    """Bytes of a group's weights."""
    return BLOCK * GROUP * BITS[form] // 8


def piece_bytes(form: int) -> int:
    """Bytes of a piece: a line of scales and minima, then the weights."""
    return LINE + SPAN[form] * group_bytes(form)


def block_bytes(form: int, groups: int) -> int:
    """Bytes of a block of outputs."""
    return groups // SPAN[form] * piece_bytes(form)


def weights_of(builder: Any, here: Any, bits: int) -> list[tuple[int, Any]]:
    """Some lanes' weights of a group as unsigned bytes: number and vector of each four."""
    found = []
    low = same(I32, LOW, PLACES)
    for line in range(FOURS * bits // 8):
        held = load(builder, builder.add(here, I64(line * LINE)), SUMS, 4 * PLACES)
        if bits == 8:
            found.append((line, held))
        else:
            found.append((line, builder.and_(held, low)))
            high = builder.and_(builder.lshr(held, same(I32, 4, PLACES)), low)
            found.append((line + FOURS // 2, high))
    return found


def fma(builder: Any, left: Any, right: Any, more: Any) -> Any:
    """Fused multiply-add of vectors."""
    return call(builder, f"llvm.fma.v{PLACES}f32", PRODUCTS, left, right, more)


def keep_order(builder: Any) -> None:
    """Keep the compiler from gathering memory accesses of both sides on one side."""
    kind = ir.FunctionType(ir.VoidType(), [])
    builder.call(ir.InlineAsm(kind, "", "~{memory}", side_effect=True), [])


def steps_at(builder: Any, address: Any) -> Any:
    """Load scales or minima of some outputs."""
    return builder.fpext(load(builder, address, HALVES, 2), PRODUCTS)


def spread_at(builder: Any, address: Any, kind: Any) -> Any:
    """Broadcast a number in memory."""
    return spread(builder, load(builder, address, kind, 4), PLACES)


def group_sum(builder: Any, form: int, fours: Any, start: Any, mark: Any, lines: Any) -> Any:
    """Sum of a row's products with a group, with the weights around their middle.

    Lines are prefetched between the products: many at once would wait for each other.
    """
    total = same(I32, 0, PLACES)
    if form != MIN4:
        total = spread_at(builder, builder.add(mark, I64(8)), I32)
        total = builder.shl(total, same(I32, BITS[form] - 1, PLACES))
    for i, (number, four) in enumerate(fours):
        if lines and i * len(lines) % len(fours) == 0:
            fetch(builder, lines[i * len(lines) // len(fours)])
            keep_order(builder)
        row = spread_at(builder, builder.add(start, I64(DEEP * number)), I32)
        total = call(builder, DOT, SUMS, total, four, row)
    return builder.sitofp(total, PRODUCTS)


def block_tile_maker(count: int, form: int) -> Any:
    """Make the kernel of a block's outputs for `count` rows, which reads weights once."""
    size = piece_bytes(form)
    bits = BITS[form]

    def emit(
        builder: Any,
        weights: Any,
        groups: Any,
        rows: Any,
        records: Any,
        apart: Any,
        out: Any,
        out_apart: Any,
        ahead: Any,
        pace: Any,
    ) -> None:
        """Multiply int8 rows by the groups of a block.

        Rows, and the records of their groups, are `apart` bytes apart, results, float32,
        `out_apart` bytes; the next block lies at `ahead`, and `pace` is 0 if it is not prefetched.
        """
        starts = [builder.add(rows, builder.mul(apart, I64(r))) for r in range(count)]
        marks = [builder.add(records, builder.mul(apart, I64(r))) for r in range(count)]
        far = builder.mul(pace, I64(size))

        def add_group(
            here: Any, there: Any, index: int, part: int, group: Any, made: list[Any]
        ) -> None:
            """Add the products of one group of a piece, for some lanes."""
            shift = I64(LINE + index * group_bytes(form) + 4 * PLACES * part)
            fours = weights_of(builder, builder.add(here, shift), bits)
            lines = [
                builder.add(there, builder.add(shift, I64(line * LINE)))
                for line in range(len(fours) * bits // 8)
            ]
            lanes = 2 * PLACES * part
            scale = steps_at(builder, builder.add(here, I64(STEPS * index + lanes)))
            if form == MIN4:
                low = steps_at(builder, builder.add(here, I64(STEPS + lanes)))
            for r in range(count):
                mark = offset(builder, marks[r], group, RECORD)
                start = offset(builder, starts[r], group, GROUP)
                exact = group_sum(builder, form, fours, start, mark, [] if r else lines)
                step = builder.fmul(scale, spread_at(builder, mark, F32))
                at = r * PARTS + part
                if form == MIN4:
                    total = spread_at(builder, builder.add(mark, I64(4)), F32)
                    made[at] = fma(builder, low, total, made[at])
                made[at] = fma(builder, exact, step, made[at])

        def body(piece: Any, held: Carried) -> Carried:
            here = offset(builder, weights, piece, size)
            there = builder.add(ahead, builder.mul(piece, far))
            fetch(builder, there)
            made = list(held)
            for index in range(SPAN[form]):
                group = builder.add(builder.mul(piece, I64(SPAN[form])), I64(index))
                for part in range(PARTS):
                    add_group(here, there, index, part, group, made)
            return made

        pieces = builder.sdiv(groups, I64(SPAN[form]))
        sums = loop(builder, pieces, 1, [same(F32, 0.0, PLACES)] * (count * PARTS), body)
        for r in range(count):
            for part in range(PARTS):
                where = builder.add(out, builder.mul(out_apart, I64(r)))
                where = builder.add(where, I64(4 * PLACES * part))
                store(builder, sums[r * PARTS + part], where)

    return emit


BLOCK_TILE = 8  # rows
min4_tile, signed4_tile, signed8_tile = (
    inline(
        by_count(*(block_tile_maker(count, form) for count in range(1, BLOCK_TILE + 1))),
        types.void,
        *[types.int64] * 10,
    )
    for form in (MIN4, SIGNED4, SIGNED8)
)

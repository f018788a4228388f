"""Dot products of rows with weights of 4 or 8 bits in groups of 32 inputs, in LLVM IR.

Memory is read from its beginning to its end. A block of sixteen outputs is pieces of one or two
groups: a line of float16, scales and minima of a group or the scales of two, then the weights as
unsigned integers in fours of inputs. Of 4-bit weights, a line holds two fours: one in the low
halves of its bytes, the other, sixteen inputs further, in the high halves, as in GGUF files.
Weights of MXFP4 are numbers of a table, which a shuffle looks up.
"""

from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types

from sapwood.backends.torch.cpu_int8.dot_products import DOTS, VnniDots
from sapwood.backends.torch.cpu_int8.intrinsics import BLOCK, DEEP, LINE, TILE, fetch
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
LOW = 0x0F0F0F0F  # low halves of four bytes
STEPS = 2 * BLOCK  # bytes of one float16 for each output
ROW_LINES = 3  # bytes of a quantised row over its inputs
LOW_BITS = 7  # of the low parts
# a group of a row, from its beginning: high parts of integers, low parts, then step and sum in
# float32, minus the sum of the integers, and 1 if there are low parts; steps are those of 15 bits
# then, else those of 8
GROUP_BYTES = ROW_LINES * GROUP
LOW_PARTS, STEP, SUM, MIDDLE, FINE = GROUP, 2 * GROUP, 2 * GROUP + 4, 2 * GROUP + 8, 2 * GROUP + 12
FORMS = range(4)
# formats: 4 bits and a minimum; 4 and 8 bits around the middle; 4 bits of a table
MIN4, SIGNED4, SIGNED8, MXFP4 = FORMS
BITS = {MIN4: 4, SIGNED4: 4, SIGNED8: 8, MXFP4: 4}
# groups of a piece: their scales and minima fill one line
SPAN = {MIN4: 1, SIGNED4: 2, SIGNED8: 2, MXFP4: 2}
# rows of a tile; few models have MXFP4, and larger tiles take longer to compile
TILES = {form: TILE // 2 if form == MXFP4 else TILE for form in FORMS}
SHIFTS = {SIGNED4: 3, SIGNED8: 7, MXFP4: 4}  # zero points of unsigned weights, as powers of two
# the values of MXFP4 times two, which are whole numbers
HALVES = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)


def group_bytes(form: int) -> int:
    """Bytes of a group's weights."""
    return BLOCK * GROUP * BITS[form] // 8


def piece_bytes(form: int) -> int:
    """Bytes of a piece: a line of scales and minima, then the weights."""
    return LINE + SPAN[form] * group_bytes(form)


def block_bytes(form: int, groups: int) -> int:
    """Bytes of a block of outputs."""
    return groups // SPAN[form] * piece_bytes(form)


def weights_of(builder: Any, here: Any, form: int, dots: VnniDots) -> list[tuple[int, Any]]:
    """Some lanes' weights of a group as `add_group` takes them: number and vector of each four."""
    bits = BITS[form]
    found = []
    low = same(I32, LOW, dots.lanes)
    for line in range(FOURS * bits // 8):
        held = load(builder, builder.add(here, I64(line * LINE)), dots.sums, 4 * dots.lanes)
        if bits == 8:
            found.append((line, held))
        else:
            found.append((line, builder.and_(held, low)))
            high = builder.and_(builder.lshr(held, same(I32, 4, dots.lanes)), low)
            found.append((line + FOURS // 2, high))
    if form == MXFP4:
        middle = 1 << SHIFTS[form]
        return [(n, dots.looked_up(builder, four, HALVES, middle)) for n, four in found]
    return [(number, dots.unsigned(builder, four, bits)) for number, four in found]


def weight_bits(form: int) -> int:
    """Bits of weights as they are multiplied."""
    return 8 if form == MXFP4 else BITS[form]


def fma(builder: Any, left: Any, right: Any, more: Any) -> Any:
    """Fused multiply-add of vectors."""
    return call(builder, f"llvm.fma.v{left.type.count}f32", left.type, left, right, more)


def keep_order(builder: Any) -> None:
    """A compiler barrier: no memory access is moved across it."""
    kind = ir.FunctionType(ir.VoidType(), [])
    builder.call(ir.InlineAsm(kind, "", "~{memory}", side_effect=True), [])


def pin(builder: Any, value: Any) -> Any:
    """The same vector, which the compiler must compute here and not later with all others."""
    kind = ir.FunctionType(value.type, [value.type])
    return builder.call(ir.InlineAsm(kind, "", "=v,0", side_effect=True), [value])


def steps_at(builder: Any, address: Any, lanes: int) -> Any:
    """Load scales or minima of some outputs."""
    halves = load(builder, address, wide(ir.HalfType(), lanes), 2)
    return builder.fpext(halves, wide(F32, lanes))


def spread_at(builder: Any, address: Any, kind: Any, lanes: int) -> Any:
    """Broadcast a number in memory."""
    return spread(builder, load(builder, address, kind, 4), lanes)


def line_sum(
    builder: Any, bits: int, fours: Any, row: Any, start: Any, lines: Any, dots: VnniDots
) -> Any:
    """Sum of the products of a group with 32 bytes of a row, added to `start`.

    Lines are prefetched between the products: many at once would wait for each other.
    """
    total = dots.begin(builder, bits, start)
    for i, (number, four) in enumerate(fours):
        if lines and i * len(lines) % len(fours) == 0:
            fetch(builder, lines[i * len(lines) // len(fours)])
            keep_order(builder)
        inputs = spread_at(builder, builder.add(row, I64(DEEP * number)), I32, dots.lanes)
        total = dots.add_group(builder, total, four, inputs, bits)
    return dots.end(builder, total, bits, start)


def add_low_sum(builder: Any, form: int, fours: Any, row: Any, total: Any, dots: VnniDots) -> Any:
    """Total in steps of 15 bits, with the products by the low parts, where a row has them.

    Each row has a branch of its own, taken for the same groups in every block of outputs, so that
    the processor predicts it.
    """
    flag = load(builder, builder.add(row, I64(FINE)), I32, 4)
    before = builder.block
    more = builder.append_basic_block()
    after = builder.append_basic_block()
    builder.cbranch(builder.icmp_signed("!=", flag, I32(0)), more, after)
    builder.position_at_end(more)
    high = builder.shl(total, same(I32, LOW_BITS, dots.lanes))
    low = line_sum(
        builder,
        weight_bits(form),
        fours,
        builder.add(row, I64(LOW_PARTS)),
        same(I32, 0, dots.lanes),
        [],
        dots,
    )
    both = builder.add(high, low)
    builder.branch(after)
    builder.position_at_end(after)
    found = builder.phi(total.type)
    found.add_incoming(total, before)
    found.add_incoming(both, more)
    return found


def group_sum(builder: Any, form: int, fours: Any, row: Any, ahead: Any, dots: VnniDots) -> Any:
    """Sum of a row's products with a group in steps of the row, weights around their middle.

    `ahead` is prefetched.
    """
    bits = weight_bits(form)
    total = line_sum(builder, bits, fours, row, same(I32, 0, dots.lanes), ahead, dots)
    total = add_low_sum(builder, form, fours, row, total, dots)
    if form == SIGNED4 or (bits == 8 and not dots.signed):
        middle = spread_at(builder, builder.add(row, I64(MIDDLE)), I32, dots.lanes)
        total = builder.add(total, builder.shl(middle, same(I32, SHIFTS[form], dots.lanes)))
    return total


def block_tile_maker(count: int, form: int, dots: VnniDots = DOTS) -> Any:
    """Make the kernel of a block's outputs for `count` rows, which reads weights once."""
    size = piece_bytes(form)
    bits = BITS[form]
    parts = dots.parts
    vector = 4 * dots.lanes  # bytes

    def emit(
        builder: Any,
        weights: Any,
        groups: Any,
        rows: Any,
        stride: Any,
        out: Any,
        out_apart: Any,
        ahead: Any,
        pace: Any,
    ) -> None:
        """Multiply rows by the groups of a block.

        Rows are `stride` bytes apart, results, float32, `out_apart` bytes. With each line of
        weights, `pace` bytes more are prefetched from `ahead`.
        """
        starts = [builder.add(rows, builder.mul(stride, I64(r))) for r in range(count)]
        far = builder.mul(pace, I64(size // LINE))

        def add_group(
            here: Any, there: Any, index: int, part: int, group: Any, made: list[Any]
        ) -> None:
            """Add the products of one group of a piece, for some lanes."""
            first = LINE + index * group_bytes(form)
            fours = weights_of(builder, builder.add(here, I64(first + vector * part)), form, dots)
            lines = [
                builder.add(there, builder.mul(pace, I64(first // LINE + line)))
                for line in range(len(fours) * bits // 8 if part == 0 else 0)
            ]
            lanes = vector // 2 * part
            scale = steps_at(builder, builder.add(here, I64(STEPS * index + lanes)), dots.lanes)
            if form == MIN4:
                least = steps_at(builder, builder.add(here, I64(STEPS + lanes)), dots.lanes)
            for r, start in enumerate(starts):
                row = offset(builder, start, group, GROUP_BYTES)
                exact = group_sum(builder, form, fours, row, [] if r else lines, dots)
                near = spread_at(builder, builder.add(row, I64(STEP)), F32, dots.lanes)
                step = builder.fmul(scale, near)
                at = r * parts + part
                if form == MIN4:
                    total = spread_at(builder, builder.add(row, I64(SUM)), F32, dots.lanes)
                    made[at] = fma(builder, least, total, made[at])
                made[at] = fma(builder, builder.sitofp(exact, dots.products), step, made[at])
                made[at] = pin(builder, made[at])

        def body(piece: Any, held: Carried) -> Carried:
            here = offset(builder, weights, piece, size)
            there = builder.add(ahead, builder.mul(piece, far))
            fetch(builder, there)
            made = list(held)
            for index in range(SPAN[form]):
                group = builder.add(builder.mul(piece, I64(SPAN[form])), I64(index))
                for part in range(parts):
                    add_group(here, there, index, part, group, made)
            return made

        pieces = builder.sdiv(groups, I64(SPAN[form]))
        sums = loop(builder, pieces, 1, [same(F32, 0.0, dots.lanes)] * (count * parts), body)
        for r in range(count):
            for part in range(parts):
                where = builder.add(out, builder.mul(out_apart, I64(r)))
                where = builder.add(where, I64(vector * part))
                store(builder, sums[r * parts + part], where)

    return emit


def block_tile(form: int) -> Any:
    """The kernel of a block's outputs for up to TILES[form] rows."""
    kernels = (block_tile_maker(count, form) for count in range(1, TILES[form] + 1))
    return inline(by_count(*kernels), types.void, *[types.int64] * 9)


min4_tile, signed4_tile, signed8_tile, mxfp4_tile = map(block_tile, FORMS)

"""Vector loops over sixteen elements, in LLVM IR, where LLVM's own vectoriser gives up.

It does so at maxima, at sums with a fixed order and at integer dot products. Memory is passed by
address. The order of all operations is fixed, whatever the processor.
"""

from collections.abc import Callable, Sequence
from inspect import Parameter, Signature
from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.extending import intrinsic

# before anything is compiled
from sapwood.backends.torch.cpu_int8 import cpu_target  # noqa: F401

POSITIONAL = Parameter.POSITIONAL_OR_KEYWORD
WIDE = 16  # elements of a vector
LOWEST = -3.4e38  # below every compared value
I1, I8, I16, I32, I64, F32 = (*map(ir.IntType, (1, 8, 16, 32, 64)), ir.FloatType())


def inline(emit: Callable[..., Any], answer: Any, *takes: Any) -> Any:
    """An intrinsic for compiled code; `emit(builder, *arguments)` writes its body."""

    def typed(*_: Any) -> Any:
        def generate(context: Any, builder: Any, _: Any, arguments: Any) -> Any:
            made = emit(builder, *arguments)
            return context.get_dummy_value() if made is None else made

        return answer(*takes), generate

    # numba reads the number of arguments from the signature
    names = ["context", *(f"argument_{i}" for i in range(len(takes)))]
    parameters = [Parameter(name, POSITIONAL) for name in names]
    typed.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    return intrinsic(typed)


# --------------------------------------------------------------------------------- LLVM operations
def wide(kind: Any, count: int = WIDE) -> ir.VectorType:
    """A vector type."""
    return ir.VectorType(kind, count)


def same(kind: Any, value: float, count: int = WIDE) -> ir.Constant:
    """A constant vector of one value."""
    return ir.Constant(
        wide(kind, count), [float(np.float32(value)) if kind is F32 else value] * count
    )


def spread(builder: Any, value: Any, count: int = WIDE) -> Any:
    """Broadcast a value to a vector."""
    empty = ir.Constant(wide(value.type, count), ir.Undefined)
    first = builder.insert_element(empty, value, I32(0))
    return builder.shuffle_vector(first, empty, same(I32, 0, count))


def offset(builder: Any, address: Any, index: Any, size: int) -> Any:
    """Address of the element with this index."""
    return builder.add(address, builder.mul(index, I64(size)))


def load(builder: Any, address: Any, kind: Any, align: int = 1) -> Any:
    """Load from an address."""
    found = builder.load(builder.inttoptr(address, kind.as_pointer()))
    found.align = align
    return found


def store(builder: Any, value: Any, address: Any) -> None:
    """Store to an address."""
    builder.store(value, builder.inttoptr(address, value.type.as_pointer())).align = 1


def call(builder: Any, name: str, answer: Any, *arguments: Any) -> Any:
    """Call an LLVM intrinsic by its full name."""
    kind = ir.FunctionType(answer, [argument.type for argument in arguments])
    return builder.call(builder.module.declare_intrinsic(name, (), kind), arguments)


def greater(builder: Any, left: Any, right: Any) -> Any:
    """Element-wise maximum."""
    return builder.select(builder.fcmp_ordered(">", left, right), left, right)


Carried = Sequence[Any]  # loop-carried values


def loop(
    builder: Any, count: Any, step: int, carried: Carried, body: Callable[[Any, Carried], Carried]
) -> Carried:
    """Run body(index, carried) for 0, step, ... below `count`; the last carried values."""
    before = builder.block
    turn = builder.append_basic_block()
    after = builder.append_basic_block()
    builder.cbranch(builder.icmp_signed(">", count, I64(0)), turn, after)
    builder.position_at_end(turn)
    index = builder.phi(I64)
    held = [builder.phi(value.type) for value in carried]
    made = body(index, held)
    following = builder.add(index, I64(step))
    last = builder.block
    for phi, first, new in zip([index, *held], [I64(0), *carried], [following, *made], strict=True):
        phi.add_incoming(first, before)
        phi.add_incoming(new, last)
    builder.cbranch(builder.icmp_signed("<", following, count), turn, after)
    builder.position_at_end(after)
    found = [builder.phi(value.type) for value in carried]
    for phi, first, new in zip(found, carried, made, strict=True):
        phi.add_incoming(first, before)
        phi.add_incoming(new, last)
    return found


def by_count(*emits: Callable[..., None]) -> Callable[..., None]:
    """Choose among kernels for 1, 2, ... items by a first argument; the last takes more as well."""

    def emit(builder: Any, count: Any, *arguments: Any) -> None:
        blocks = [builder.append_basic_block() for _ in emits]
        after = builder.append_basic_block()
        choice = builder.switch(count, blocks[-1])
        for i, (block, kernel) in enumerate(zip(blocks, emits, strict=True)):
            choice.add_case(I64(i + 1), block)
            builder.position_at_end(block)
            kernel(builder, *arguments)
            builder.branch(after)
        builder.position_at_end(after)

    return emit


NAMES = {F32: "f32", I8: "i8", I16: "i16"}
Mask = Any  # valid elements of a vector; None for all


def valid(builder: Any, count: Any) -> Mask:
    """Mask of the first `count` elements of a vector."""
    places = ir.Constant(wide(I64), list(range(WIDE)))
    return builder.icmp_signed("<", places, spread(builder, count))


def sweep(
    builder: Any, count: Any, carried: Carried, body: Callable[[Any, Mask, Carried], Carried]
) -> Carried:
    """Run body(index, mask, carried) on whole vectors, then once on the masked rest."""
    full = builder.and_(count, I64(-WIDE))
    held = loop(builder, full, WIDE, carried, lambda index, held: body(index, None, held))
    left = builder.sub(count, full)

    def rest(_: Any, held: Carried) -> Carried:
        return body(full, valid(builder, left), held)

    return loop(builder, left, WIDE, held, rest)


def load_some(builder: Any, address: Any, kind: Any, mask: Mask, other: float) -> Any:
    """Masked load, with `other` in the masked-out elements."""
    if mask is None:
        return load(builder, address, wide(kind))
    suffix = NAMES[kind]
    where = builder.inttoptr(address, wide(kind).as_pointer())
    return call(
        builder,
        f"llvm.masked.load.v16{suffix}.p0",
        wide(kind),
        where,
        I32(1),
        mask,
        same(kind, other),
    )


def store_some(builder: Any, value: Any, address: Any, mask: Mask) -> None:
    """Masked store."""
    if mask is None:
        store(builder, value, address)
    else:
        suffix = NAMES[value.type.element]
        where = builder.inttoptr(address, value.type.as_pointer())
        call(
            builder, f"llvm.masked.store.v16{suffix}.p0", ir.VoidType(), value, where, I32(1), mask
        )


def halved(builder: Any, values: Any, join: Callable[[Any, Any, Any], Any]) -> Any:
    """Join the halves of a vector until one element is left.

    LLVM's own reductions take numbers one after the other, or look for NaN at every step.
    """
    count = values.type.count
    while count > 1:
        count //= 2
        halves = [
            builder.shuffle_vector(
                values, values, ir.Constant(wide(I32, count), list(range(start, start + count)))
            )
            for start in (0, count)
        ]
        values = join(builder, *halves)
    return builder.extract_element(values, I32(0))


def top(builder: Any, values: Any) -> Any:
    """Largest element of a vector."""
    return halved(builder, values, greater)


def total(builder: Any, values: Any) -> Any:
    """Sum of the elements of a float vector, by halves."""
    return halved(builder, values, lambda made, left, right: made.fadd(left, right))


# ------------------------------------------------------------------------------------------- rows
def emit_once(builder: Any, left: Any, right: Any, more: Any) -> Any:
    """Fused multiply-add."""
    return call(builder, "llvm.fma.f32", F32, left, right, more)


def emit_peak(builder: Any, row: Any, count: Any) -> Any:
    """Largest magnitude of float32 [count]."""

    def body(index: Any, mask: Mask, held: Carried) -> Carried:
        values = load_some(builder, offset(builder, row, index, 4), F32, mask, 0.0)
        return [greater(builder, call(builder, "llvm.fabs.v16f32", wide(F32), values), held[0])]

    return top(builder, sweep(builder, count, [same(F32, 0.0)], body)[0])


def emit_largest(builder: Any, row: Any, count: Any) -> Any:
    """Largest of float32 [count]."""

    def body(index: Any, mask: Mask, held: Carried) -> Carried:
        return [
            greater(
                builder,
                load_some(builder, offset(builder, row, index, 4), F32, mask, LOWEST),
                held[0],
            )
        ]

    return top(builder, sweep(builder, count, [same(F32, LOWEST)], body)[0])


def emit_power(builder: Any, row: Any, count: Any) -> Any:
    """Sum of squares of float32 [count]: sixteen partial sums, added in order."""
    full = builder.and_(count, I64(-WIDE))

    def body(index: Any, held: Carried) -> Carried:
        values = load(builder, offset(builder, row, index, 4), wide(F32))
        return [builder.fadd(held[0], builder.fmul(values, values))]

    [partial] = loop(builder, full, WIDE, [same(F32, 0.0)], body)

    def rest(index: Any, held: Carried) -> Carried:
        value = load(builder, offset(builder, row, builder.add(index, full), 4), F32)
        return [builder.fadd(held[0], builder.fmul(value, value))]

    [total] = loop(
        builder, builder.sub(count, full), 1, [builder.extract_element(partial, I32(0))], rest
    )
    for lane in range(1, WIDE):
        total = builder.fadd(total, builder.extract_element(partial, I32(lane)))
    return total


def emit_turn(builder: Any, row: Any, cos: Any, sin: Any, half: Any, out: Any) -> None:
    """Rotary embedding of one head, float32 [2 * half], with cosines and sines [half]."""
    far = builder.mul(half, I64(4))

    def body(index: Any, mask: Mask, _: Carried) -> Carried:
        here = builder.mul(index, I64(4))
        there = builder.add(here, far)
        places = [
            builder.add(base, shift)
            for base, shift in ((row, here), (row, there), (cos, here), (sin, here))
        ]
        left, right, c, s = (load_some(builder, place, F32, mask, 0.0) for place in places)
        low = builder.fsub(builder.fmul(left, c), builder.fmul(right, s))
        high = builder.fadd(builder.fmul(right, c), builder.fmul(left, s))
        store_some(builder, low, builder.add(out, here), mask)
        store_some(builder, high, builder.add(out, there), mask)
        return []

    sweep(builder, half, [], body)


def emit_round(builder: Any, row: Any, count: Any, factor: Any, out: Any) -> None:
    """Round row float32 [count] times a factor to int16 [count]."""
    factors = spread(builder, factor)

    def body(index: Any, mask: Mask, _: Carried) -> Carried:
        values = builder.fmul(
            load_some(builder, offset(builder, row, index, 4), F32, mask, 0.0), factors
        )
        near = call(builder, "llvm.rint.v16f32", wide(F32), values)
        whole = builder.trunc(builder.fptosi(near, wide(I32)), wide(I16))
        store_some(builder, whole, offset(builder, out, index, 2), mask)
        return []

    sweep(builder, count, [], body)


once = inline(emit_once, types.float32, *[types.float32] * 3)
turn = inline(emit_turn, types.void, *[types.int64] * 5)
round_to = inline(emit_round, types.void, types.int64, types.int64, types.float32, types.int64)
largest_of = inline(emit_largest, types.float32, types.int64, types.int64)
peak = inline(emit_peak, types.float32, types.int64, types.int64)
power = inline(emit_power, types.float32, types.int64, types.int64)

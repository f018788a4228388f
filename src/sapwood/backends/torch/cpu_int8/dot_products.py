"""Dot products of bytes and of int16 for the target, in LLVM IR.

Sums of integers are exact, so all targets make the same bits. With VNNI one instruction multiplies
four bytes and adds them to a sum. AVX2 takes two: products of unsigned and signed bytes are added
in pairs to int16, which saturates, then in fours. So weights give their sign to the rows: pairs are
at most 2 * 128 * 127, below 2^15.
"""

from collections.abc import Sequence
from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]

from sapwood.backends.torch.cpu_int8.cpu_target import TARGET, TARGETS, CpuTarget
from sapwood.backends.torch.cpu_int8.simd import F32, I8, I16, I32, WIDE, call, same, wide

MIDDLE = 128  # of unsigned bytes
LANE = 16  # bytes among which one shuffle looks them up


class VnniDots:
    """Dot products by VPDPBUSD and VPDPWSSD."""

    shift = 0  # of the bytes of rows, which are unsigned
    signed = False  # True if 8-bit weights of groups are taken around their middle

    def __init__(self, lanes: int) -> None:
        self.lanes = lanes
        self.parts = WIDE // lanes  # vectors of the sums of sixteen outputs
        self.sums = wide(I32, lanes)
        self.products = wide(F32, lanes)
        self._bytes = f"llvm.x86.avx512.vpdpbusd.{32 * lanes}"
        self._shorts = f"llvm.x86.avx512.vpdpwssd.{32 * lanes}"
        wide_one = 4 * lanes > 2 * LANE
        self._shuffle = f"llvm.x86.{'avx512.pshuf.b.512' if wide_one else 'avx2.pshuf.b'}"

    def prepare(self, builder: Any, weights: Any) -> Any:
        """Signed weights as `add_row` takes them."""
        return weights

    def add_row(self, builder: Any, total: Any, row: Any, weights: Any) -> Any:
        """Total plus products of shifted rows and prepared weights, by fours."""
        return call(builder, self._bytes, self.sums, total, row, weights)

    def centre(self, builder: Any, total: Any, zero: Any) -> Any:
        """Sums of `add_row` without the zero point of the rows."""
        return builder.sub(total, zero)

    # ------------------------------------------------------------------ groups of unsigned weights
    def unsigned(self, builder: Any, weights: Any, bits: int) -> Any:
        """Unsigned weights of a group as `add_group` takes them."""
        return weights

    def looked_up(self, builder: Any, codes: Any, table: Sequence[int], middle: int) -> Any:
        """Bytes of a table of 16 by their numbers, as `add_group` takes 8-bit weights.

        Those are unsigned, around this middle, or as they are where weights are signed.
        """
        count = 4 * self.lanes
        kind = wide(I8, count)
        bytes_ = ir.Constant(kind, [value + middle for value in table] * (count // LANE))
        codes = builder.bitcast(codes, kind)
        return builder.bitcast(call(builder, self._shuffle, kind, bytes_, codes), self.sums)

    def begin(self, builder: Any, bits: int, start: Any) -> Any:
        """Sums of a group before its products."""
        return start

    def add_group(self, builder: Any, total: Any, weights: Any, row: Any, bits: int) -> Any:
        """Total plus products of prepared weights and a signed row."""
        return call(builder, self._bytes, self.sums, total, weights, row)

    def end(self, builder: Any, total: Any, bits: int, start: Any) -> Any:
        """Sums of a group in int32, with `start`."""
        return total

    # ----------------------------------------------------------------------------------- attention
    def add_shorts(self, builder: Any, total: Any, left: Any, right: Any) -> Any:
        """Total plus products of int16, by twos; all are int32 vectors."""
        return call(builder, self._shorts, self.sums, total, left, right)


class Avx2Dots(VnniDots):
    """Dot products by VPMADDUBSW and VPMADDWD."""

    shift = MIDDLE  # rows are signed
    signed = True

    def __init__(self, lanes: int) -> None:
        super().__init__(lanes)
        self._ones = same(I16, 1, 2 * lanes)
        self._as_bytes = wide(I8, 4 * lanes)
        self._as_shorts = wide(I16, 2 * lanes)

    def _signs(self, builder: Any, values: Any, signs: Any) -> Any:
        return call(builder, "llvm.x86.avx2.psign.b", self._as_bytes, values, signs)

    def _pairs(self, builder: Any, unsigned: Any, signed: Any) -> Any:
        """Products of bytes, added in pairs: int16."""
        return call(builder, "llvm.x86.avx2.pmadd.ub.sw", self._as_shorts, unsigned, signed)

    def _fours(self, builder: Any, pairs: Any) -> Any:
        return call(builder, "llvm.x86.avx2.pmadd.wd", self.sums, pairs, self._ones)

    def prepare(self, builder: Any, weights: Any) -> Any:
        """Magnitudes and signed bytes."""
        signed = builder.bitcast(weights, self._as_bytes)
        name = f"llvm.abs.v{4 * self.lanes}i8"
        return call(builder, name, self._as_bytes, signed, ir.IntType(1)(0)), signed

    def add_row(self, builder: Any, total: Any, row: Any, weights: Any) -> Any:
        """Total plus products of signed rows and prepared weights, by fours."""
        size, signed = weights
        turned = self._signs(builder, builder.bitcast(row, self._as_bytes), signed)
        return builder.add(total, self._fours(builder, self._pairs(builder, size, turned)))

    def centre(self, builder: Any, total: Any, zero: Any) -> Any:
        """The sums: rows have no zero point."""
        return total

    def unsigned(self, builder: Any, weights: Any, bits: int) -> Any:
        """4-bit weights as they are; 8-bit ones around their middle, as `prepare`."""
        if bits == 8:
            middle = same(I8, -MIDDLE, 4 * self.lanes)
            weights = builder.xor(builder.bitcast(weights, self._as_bytes), middle)
            return self.prepare(builder, weights)
        return builder.bitcast(weights, self._as_bytes)

    def looked_up(self, builder: Any, codes: Any, table: Sequence[int], middle: int) -> Any:
        """Bytes of a table of 16 by their numbers, as `prepare`."""
        return self.prepare(builder, super().looked_up(builder, codes, table, 0))

    def begin(self, builder: Any, bits: int, start: Any) -> Any:
        """Sums of a group before its products; of 4 bits int16: 16 of at most 15 * 127 fit."""
        return start if bits == 8 else same(I16, 0, 2 * self.lanes)

    def add_group(self, builder: Any, total: Any, weights: Any, row: Any, bits: int) -> Any:
        """Total plus products of prepared weights and a signed row."""
        if bits == 8:
            return self.add_row(builder, total, row, weights)
        row = builder.bitcast(row, self._as_bytes)
        return builder.add(total, self._pairs(builder, weights, row))

    def end(self, builder: Any, total: Any, bits: int, start: Any) -> Any:
        """Sums of a group in int32, with `start`."""
        return total if bits == 8 else builder.add(start, self._fours(builder, total))

    def add_shorts(self, builder: Any, total: Any, left: Any, right: Any) -> Any:
        """Total plus products of int16, by twos."""
        both = (builder.bitcast(side, self._as_shorts) for side in (left, right))
        return builder.add(total, call(builder, "llvm.x86.avx2.pmadd.wd", self.sums, *both))


def dots_of(target: CpuTarget) -> VnniDots:
    """The dot products of a target."""
    return (VnniDots if target.vnni else Avx2Dots)(target.lanes)


# without a target nothing is compiled; layouts and tables are there all the same
DOTS = dots_of(TARGET or TARGETS[0])

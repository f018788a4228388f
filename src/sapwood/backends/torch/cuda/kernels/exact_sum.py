"""Sums of squares as whole numbers: exact, so that their order does not matter."""
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
# mypy: disallow-untyped-decorators=False, disallow-untyped-calls=False

import triton
import triton.language as tl

# of a whole number: sums up to 2**39 in float16, whose squares end at 2**32; up to 2**43 in
# bfloat16, whose numbers have 8 bits
UNIT = tl.constexpr(2.0**-24)
COARSE_UNIT = tl.constexpr(2.0**-20)


@triton.jit
def whole(squared, dtype: tl.constexpr):
    """Squares of numbers of this type as whole numbers."""
    unit: tl.constexpr = COARSE_UNIT if dtype == tl.bfloat16 else UNIT
    return (squared * (1 / unit) + 0.5).to(tl.int64)


@triton.jit
def real(sums, dtype: tl.constexpr):
    """The numbers that whole numbers stand for."""
    unit: tl.constexpr = COARSE_UNIT if dtype == tl.bfloat16 else UNIT
    return sums.to(tl.float32) * unit

"""Groups of keys whose sums are added up together: by position alone, for kernels."""
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
# mypy: disallow-untyped-decorators=False, disallow-untyped-calls=False

import triton
import triton.language as tl

from sapwood.backends.torch.cuda.kernels.attention_tiles import CHUNK, FINE, GROUPS

STEP = tl.constexpr(CHUNK)
FINE_END = tl.constexpr(FINE)
COARSE = tl.constexpr(GROUPS[1][1])
COARSE_END = tl.constexpr(GROUPS[2][0])
LARGE = tl.constexpr(GROUPS[2][1])
LARGE_END = tl.constexpr(GROUPS[3][0])
HUGE = tl.constexpr(GROUPS[3][1])
# index of the first group of each size
COARSE_AT = tl.constexpr(FINE // CHUNK)
LARGE_AT = tl.constexpr(COARSE_AT.value + (COARSE_END.value - FINE) // COARSE.value)
HUGE_AT = tl.constexpr(LARGE_AT.value + (LARGE_END.value - COARSE_END.value) // LARGE.value)


@triton.jit
def group_at(position):
    """Index of the group that holds a position."""
    fine = position // STEP
    coarse = COARSE_AT + (position - FINE_END) // COARSE
    large = LARGE_AT + (position - COARSE_END) // LARGE
    huge = HUGE_AT + (position - LARGE_END) // HUGE
    upper = tl.where(position < LARGE_END, large, huge)
    return tl.where(position < FINE_END, fine, tl.where(position < COARSE_END, coarse, upper))


@triton.jit
def start_of(group):
    """First position of a group."""
    coarse = FINE_END + (group - COARSE_AT) * COARSE
    large = COARSE_END + (group - LARGE_AT) * LARGE
    huge = LARGE_END + (group - HUGE_AT) * HUGE
    upper = tl.where(group < HUGE_AT, large, huge)
    return tl.where(group < COARSE_AT, group * STEP, tl.where(group < LARGE_AT, coarse, upper))

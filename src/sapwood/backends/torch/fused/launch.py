"""What all kernels share."""
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
# mypy: disallow-untyped-decorators=False, disallow-untyped-calls=False

from typing import Any

import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

WIDEN = tl.constexpr(bool(triton.knobs.runtime.interpret))  # the interpreter has no products of bfloat16


@triton.jit
def wait(early: tl.constexpr):
    """Until the kernel before is done; all that comes before this may overlap with it.

    The kernel after is let in only now: kernels that wait for several others would take the place of those at work.
    """
    if early:
        gdc_wait()
        gdc_launch_dependents()


@triton.jit
def fetch(weight, lines, k, start, early: tl.constexpr, depth: tl.constexpr):
    """Ask for the first inputs of these lines, depth * 128 bytes each, while the kernel before still runs."""
    if early:
        each: tl.constexpr = 1024 // weight.dtype.element_ty.primitive_bitwidth
        inputs = tl.minimum(start + tl.arange(0, depth) * each, k - 1)
        tl.inline_asm_elementwise(
            "prefetch.global.L2 [$1]; mov.b32 $0, 0;", "=r,l", [weight + lines[:, None].to(tl.int64) * k + inputs],
            dtype=tl.int32, is_pure=False, pack=1,
        )  # fmt: skip


def options(early: bool, warps: int = 4, stages: int = 3) -> dict[str, Any]:
    """How a kernel is launched; `early` while the one before still runs."""
    return {"num_warps": warps, "num_stages": stages, **({"launch_pdl": True} if early else {})}


def or_other(tensor: Tensor | None, other: Tensor) -> Tensor:
    """A kernel takes a tensor for every argument, used or not."""
    return other if tensor is None else tensor

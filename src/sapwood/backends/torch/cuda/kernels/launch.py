"""Launch options of all kernels, and programmatic dependent launch.

On Hopper a kernel is launched while the one before it still runs, so that its launch costs no time.
Every kernel therefore waits before it reads results of others, and long kernels launch the next one
before their end.
"""
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
# mypy: disallow-untyped-decorators=False, disallow-untyped-calls=False

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

# the interpreter has no products of bfloat16
WIDEN = tl.constexpr(bool(triton.knobs.runtime.interpret))
# compute capability with dependent launches and bulk prefetch
HOPPER = (9, 0)


def overlaps() -> bool:
    """True when kernels may be launched early."""
    return (
        not WIDEN.value
        and torch.cuda.is_available()
        and torch.cuda.get_device_capability() >= HOPPER
    )


EARLY = tl.constexpr(overlaps())


@triton.jit
def wait():
    """Wait until the kernels before are done.

    Before this a kernel writes nothing, and reads only what the kernel right before it does not
    write: that one waited for all earlier kernels before it launched this one.
    """
    if EARLY:
        gdc_wait()


@triton.jit
def launch_next_kernel():
    """Launch the next kernel; early only if it has much to load and both fit the device."""
    if EARLY:
        gdc_launch_dependents()


def options(warps: int = 4, stages: int = 3) -> dict[str, Any]:
    """Launch options of a kernel that calls `wait`.

    Products and sums are not fused, so that an expression has the same bits in every kernel.
    """
    early = {"launch_pdl": True} if EARLY.value else {}
    return {"num_warps": warps, "num_stages": stages, "enable_fp_fusion": False, **early}


def or_other(tensor: Tensor | None, other: Tensor) -> Tensor:
    """The tensor, or `other`: a kernel takes a tensor for every argument, used or not."""
    return other if tensor is None else tensor

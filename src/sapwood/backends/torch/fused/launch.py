"""What all kernels share: how they are launched, and how one follows the other.

On devices that can, a kernel is launched while the one before it still runs, so that its launch costs no
time. Every kernel therefore waits before it touches what others made, and the longer ones let the next one
in before their end.
"""
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
# mypy: disallow-untyped-decorators=False, disallow-untyped-calls=False

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

WIDEN = tl.constexpr(bool(triton.knobs.runtime.interpret))  # the interpreter has no products of bfloat16
HOPPER = (9, 0)  # the first kind of device whose kernels may overlap, and which fetches many bytes at once


def overlaps() -> bool:
    """True where kernels may be launched early."""
    return not WIDEN.value and torch.cuda.is_available() and torch.cuda.get_device_capability() >= HOPPER


EARLY = tl.constexpr(overlaps())


@triton.jit
def wait():
    """Until the kernels before are done.

    Before this a kernel writes nothing, and reads only what the kernel right before it does not write: that
    one has waited for all the others itself before it let anybody in.
    """
    if EARLY:
        gdc_wait()


@triton.jit
def let_in():
    """Have the next kernel launched; at the beginning only where it has much to ask for and there is room for both."""
    if EARLY:
        gdc_launch_dependents()


def options(warps: int = 4, stages: int = 3) -> dict[str, Any]:
    """How a kernel that waits is launched."""
    early = {"launch_pdl": True} if EARLY.value else {}
    return {"num_warps": warps, "num_stages": stages, **early}


def or_other(tensor: Tensor | None, other: Tensor) -> Tensor:
    """A kernel takes a tensor for every argument, used or not."""
    return other if tensor is None else tensor

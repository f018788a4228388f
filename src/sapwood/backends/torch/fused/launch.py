"""What all kernels share."""
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
# mypy: disallow-untyped-decorators=False, disallow-untyped-calls=False

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

WIDEN = tl.constexpr(bool(triton.knobs.runtime.interpret))  # the interpreter has no products of bfloat16


def options(warps: int = 4, stages: int = 3) -> dict[str, Any]:
    """How a kernel is launched."""
    return {"num_warps": warps, "num_stages": stages}


def or_other(tensor: Tensor | None, other: Tensor) -> Tensor:
    """A kernel takes a tensor for every argument, used or not."""
    return other if tensor is None else tensor

"""Random weights in each form that the projections on CUDA take."""

from collections.abc import Callable

import torch
from torch import Tensor

from sapwood.backends.torch.quant_weight import (
    FP8,
    ZERO4,
    ZERO8,
    QuantWeight,
    joined,
    pack_blocks,
    to_blocks_of_4,
    to_rows,
)


def floats(n: int, k: int) -> Tensor:
    """Normal numbers [n, k], float32."""
    return torch.randn(n, k)


def int8(n: int, k: int) -> QuantWeight:
    """Rows in int8."""
    return to_rows(floats(n, k), torch.int8)


def fp8(n: int, k: int) -> QuantWeight:
    """Rows in float8."""
    return to_rows(floats(n, k), FP8)


def minimum4(n: int, k: int, group: int = 32) -> QuantWeight:
    """Blocks of 4 bits with minima."""
    return to_blocks_of_4(floats(n, k), group)


def zero4(n: int, k: int, group: int = 128) -> QuantWeight:
    """Blocks of 4 bits with zero points."""
    numbers, scales = _numbers(n, k, group, 16)
    zeros = torch.randint(0, 17, scales.shape).half()
    return QuantWeight(
        ZERO4, n, k, group, pack_blocks(ZERO4, numbers, group), joined(scales, zeros)
    )


def signed4(n: int, k: int, group: int = 64) -> QuantWeight:
    """Blocks of 4 bits around 8."""
    numbers, scales = _numbers(n, k, group, 16)
    return QuantWeight(ZERO4, n, k, group, pack_blocks(ZERO4, numbers, group), joined(scales, 8))


def signed8(n: int, k: int, group: int = 32) -> QuantWeight:
    """Blocks of 8 bits around 128."""
    numbers, scales = _numbers(n, k, group, 256)
    return QuantWeight(ZERO8, n, k, group, pack_blocks(ZERO8, numbers, group), joined(scales, 128))


def _numbers(n: int, k: int, group: int, most: int) -> tuple[Tensor, Tensor]:
    scales = (torch.rand(-(-k // group), n) + 0.5).half() / most
    return torch.randint(0, most, (n, k), dtype=torch.uint8), scales


MAKERS: dict[str, Callable[[int, int], QuantWeight]] = {
    "int8": int8,
    "fp8": fp8,
    "minimum4x32": minimum4,
    "zero4x128": zero4,
    "signed4x64": signed4,
    "signed8x32": signed8,
}

"""Sums of squares as whole numbers: any order has the same bits."""
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
# mypy: disallow-untyped-decorators=False, disallow-untyped-calls=False

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.helpers.triton_mode import DEVICE, require

require()

import triton
import triton.language as tl

from sapwood.backends.torch.cuda.kernels.exact_sum import real, whole

WIDTH = 256
TYPES = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)


@triton.jit
def _sum_of_squares(x, sums, out, pieces: tl.constexpr, each: tl.constexpr):
    """Squares summed by pieces one after the other, as programs with such tiles would."""
    total = tl.zeros((1,), tl.int64)
    for piece in range(pieces):
        read = tl.load(x + piece * each + tl.arange(0, each)).to(tl.float32)
        total += tl.sum(whole(read * read, x.dtype.element_ty), 0)
    at = tl.arange(0, 1)
    tl.store(sums + at, total)
    tl.store(out + at, real(total, x.dtype.element_ty))


def summed(x: Tensor, pieces: int) -> tuple[int, float]:
    """The whole number of a row's squares, and the number that it stands for."""
    sums = torch.zeros(1, dtype=torch.int64, device=DEVICE)
    out = torch.zeros(1, device=DEVICE)
    _sum_of_squares[1,](x, sums, out, pieces, WIDTH // pieces)
    return int(sums), float(out)


@TYPES
@pytest.mark.parametrize("size", [1e-3, 1.0, 100.0])
def test_a_sum_in_any_order_has_the_same_bits(dtype: torch.dtype, size: float) -> None:
    rng = torch.Generator().manual_seed(0)
    x = (size * torch.randn(WIDTH, generator=rng)).to(DEVICE, dtype)
    orders = [x, x.flip(0), x[torch.randperm(WIDTH, generator=rng)]]
    assert len({summed(order, pieces) for order in orders for pieces in (1, 2, 16)}) == 1
    floats = {np.cumsum(order.float().cpu().numpy() ** 2)[-1] for order in orders}
    assert len(floats) > 1, "a sum of floats would have done"


@TYPES
@pytest.mark.parametrize("size", [1.0, 200.0])
def test_the_sum_is_that_of_the_squares(dtype: torch.dtype, size: float) -> None:
    x = (size * torch.randn(WIDTH, generator=torch.Generator().manual_seed(1))).to(DEVICE, dtype)
    assert summed(x, 4)[1] == pytest.approx(float(x.double().square().sum()), rel=1e-6)


def test_two_of_the_largest_numbers_of_float16_do_not_overflow() -> None:
    x = torch.zeros(WIDTH, dtype=torch.float16, device=DEVICE)
    x[[3, 200]] = 65504.0
    assert summed(x, 2)[1] == pytest.approx(2 * 65504.0**2, rel=1e-6)

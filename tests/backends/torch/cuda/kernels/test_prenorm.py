"""Norms as kernels take them: weights of at most 1, and room for what makers of rows leave."""

import pytest
import torch

from sapwood.backends.torch.cuda.kernels.prenorm import LEFT, NormBuffers, NormScale, PrenormRows


@pytest.mark.parametrize("largest", [0.01, 0.99, 1.0, 1.5, 2.0, 63.0, 64.0, 65.0])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_a_weight_is_divided_by_a_power_of_two(largest: float, dtype: torch.dtype) -> None:
    norm = torch.tensor([0.3 * largest, -largest, 0.0], dtype=dtype)
    scale = NormScale.of(norm, 1e-5)
    assert scale.norm.abs().max() <= 1
    assert scale.lift >= 1
    assert scale.lift == 2 ** round(torch.tensor(scale.lift).log2().item())
    assert torch.equal(scale.norm * scale.lift, norm)
    assert scale.norm.dtype == dtype
    assert scale.eps == 1e-5


def test_a_small_weight_is_not_made_larger() -> None:
    norm = torch.full((4,), 0.01)
    scale = NormScale.of(norm, 1e-6)
    assert scale.lift == 1
    assert torch.equal(scale.norm, norm)


def test_a_weight_of_zeros_stays_one() -> None:
    scale = NormScale.of(torch.zeros(3), 1e-6)
    assert scale.lift == 1
    assert not scale.norm.any()


def test_a_trained_weight_is_taken_without_its_gradient() -> None:
    weight = torch.nn.Parameter(torch.ones(3) * 4)
    assert not NormScale.of(weight, 1e-6).norm.requires_grad


def test_room_is_in_the_models_format_and_sums_are_whole_numbers() -> None:
    room = NormBuffers.make(torch.zeros(1, dtype=torch.float16), 7, 12)
    assert room.scaled.shape == (7, 12)
    assert room.scaled.dtype == torch.float16
    assert room.squares.shape == (LEFT, 7)
    assert room.squares.dtype == torch.int64


def test_rows_begin_with_nothing_of_the_norm_done() -> None:
    scale = NormScale.of(torch.ones(4), 1e-6)
    room = NormBuffers.make(torch.zeros(1), 2, 4)
    assert PrenormRows(torch.zeros(2, 4), scale, room).parts == 0

"""Attention over a causal block and diagonals: against loops over single rows, with slopes by differences."""

import math

import pytest
import torch
from torch import Tensor

from sapwood.train import unrolled
from sapwood.train.unrolled import Keys, attend, dense, fused

torch.set_num_threads(1)


def made(
    steps: int, heads: int = 2, kv_heads: int = 2, rows: int = 5, width: int = 4, seed: int = 0
) -> tuple[Tensor, Keys]:
    torch.manual_seed(seed)
    query = torch.randn(2, heads, rows, width, dtype=torch.float64)
    keys = [
        (
            torch.randn(2, kv_heads, rows, width, dtype=torch.float64),
            torch.randn(2, kv_heads, rows, width, dtype=torch.float64),
        )
        for _ in range(steps)
    ]
    return query, keys


def slowly(query: Tensor, steps: Keys) -> Tensor:
    """Each row reads the first step's rows up to its own, and of later steps its own row alone."""
    found = torch.zeros_like(query)
    group = query.shape[1] // steps[0][0].shape[1]
    for text in range(query.shape[0]):
        for head in range(query.shape[1]):
            kv = head // group
            for row in range(query.shape[2]):
                seen = [(0, other) for other in range(row + 1)]
                seen += [(step, row) for step in range(1, len(steps))]
                keys = torch.stack([steps[step][0][text, kv, at] for step, at in seen])
                values = torch.stack([steps[step][1][text, kv, at] for step, at in seen])
                scores = keys @ query[text, head, row] / math.sqrt(query.shape[3])
                found[text, head, row] = scores.softmax(0) @ values
    return found


@pytest.mark.parametrize("steps", [1, 2, 5])
@pytest.mark.parametrize("heads", [(2, 2), (4, 2), (3, 1)], ids=str)
def test_rows_read_what_loops_say(steps: int, heads: tuple[int, int]) -> None:
    query, keys = made(steps, *heads)
    torch.testing.assert_close(attend(query, keys), slowly(query, keys))


@pytest.mark.parametrize("steps", [1, 3])
def test_the_definition_is_the_same(steps: int) -> None:
    query, keys = made(steps)
    torch.testing.assert_close(dense(query, keys), slowly(query, keys))


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_slopes_are_those_of_differences(steps: int) -> None:
    query, keys = made(steps, rows=3, width=2)
    query.requires_grad_()
    for key, value in keys:
        key.requires_grad_()
        value.requires_grad_()
    flat = [tensor for pair in keys for tensor in pair]

    def read(query: Tensor, *flat: Tensor) -> Tensor:
        return attend(query, list(zip(flat[::2], flat[1::2], strict=True)))

    assert torch.autograd.gradcheck(read, (query, *flat))


def test_a_row_does_not_see_later_rows_nor_other_rows_of_later_steps() -> None:
    query, keys = made(3, rows=6)
    before = attend(query, keys)
    for step in range(3):
        other = [(key.clone(), value.clone()) for key, value in keys]
        other[step][0][:, :, 4] += 5.0
        other[step][1][:, :, 4] += 5.0
        moved = (attend(query, other) - before).abs().sum((0, 1, 3)) > 1e-9
        wanted = [False] * 4 + [True, step == 0]  # row 5 reads row 4 of the first step alone
        assert moved.tolist() == wanted


def test_equal_keys_share_evenly() -> None:
    query = torch.zeros(1, 1, 2, 2, dtype=torch.float64)
    key = torch.zeros_like(query)
    first = torch.tensor([[[[1.0, 0.0], [3.0, 0.0]]]], dtype=torch.float64)
    own = torch.tensor([[[[9.0, 0.0], [5.0, 0.0]]]], dtype=torch.float64)
    read = attend(query, [(key, first), (key, own)])
    assert read[0, 0, :, 0].tolist() == pytest.approx([(1 + 9) / 2, (1 + 3 + 5) / 3])


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [(torch.float32, True), (torch.float64, True), (torch.bfloat16, False), (torch.float16, False)],
)
def test_which_numbers_the_kernel_takes(dtype: torch.dtype, expected: bool) -> None:
    assert fused(torch.zeros(1, 1, 1, 8, dtype=dtype)) is expected


def test_where_no_kernel_fits_the_definition_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    query, keys = made(2)
    wanted = attend(query, keys)

    def refuse(*_: object) -> None:
        raise AssertionError("the kernel was asked")

    monkeypatch.setattr(unrolled, "kernel", refuse)
    with pytest.raises(AssertionError, match="the kernel was asked"):
        attend(query, keys)
    half = [(key.bfloat16(), value.bfloat16()) for key, value in keys]
    torch.testing.assert_close(attend(query.bfloat16(), half).double(), wanted, rtol=0.1, atol=0.1)

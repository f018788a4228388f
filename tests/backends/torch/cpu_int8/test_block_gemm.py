"""Products of weights in groups of 32: exact sums, the same bits for any number of rows."""

import numpy as np
import pytest
import torch

from sapwood.backends.torch.cpu_int8 import int8_gemm
from sapwood.backends.torch.cpu_int8.block_gemm import group_products, put_groups
from sapwood.backends.torch.cpu_int8.block_linear import BlockLinear, FloatBlocks
from sapwood.backends.torch.cpu_int8.block_quant import to_eight, to_four
from sapwood.backends.torch.cpu_int8.block_tile import (
    FORMS,
    GROUP,
    LOW_BITS,
    LOW_PARTS,
    ROW_LINES,
    STEP,
    TILES,
)
from sapwood.backends.torch.cpu_int8.linear import Int8Linear
from sapwood.core.array_types import FloatArray
from tests.helpers.int4_blocks import packed_blocks, random_strip

pytestmark = pytest.mark.skipif(not int8_gemm.available(), reason="no processor for these kernels")

SHAPES = ((16, 64), (32, 32), (40, 96), (16, 320))


def whole_rows(count: int, inputs: int) -> FloatArray:
    """Rows that quantisation does not change: integers whose largest is 127 in every group."""
    noise = np.random.default_rng(count)
    rows = noise.integers(-127, 128, (count, inputs)).astype(np.float32)
    rows[:, ::GROUP] = 127
    return rows


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("shape", SHAPES)
def test_products_are_those_of_the_exact_weights(form: int, shape: tuple[int, int]) -> None:
    outputs, inputs = shape
    given = random_strip(form, outputs, inputs // GROUP)
    matrix = packed_blocks(given)
    np.testing.assert_array_equal(matrix.exact(), given.exact())
    rows = whole_rows(3, inputs)
    want = rows.astype(np.float64) @ given.exact().astype(np.float64).T
    # only the sums over groups are rounded
    bound = 1e-6 * (np.abs(rows) @ np.abs(given.exact()).T + 127 * 8 * inputs)
    assert (np.abs(group_products(matrix, rows) - want) <= bound).all()


def test_parts_of_different_forms_share_a_matrix() -> None:
    strips = [random_strip(form, 32, 4, seed) for seed, form in enumerate(FORMS)]
    matrix = packed_blocks(*strips)
    want = np.concatenate([each.exact() for each in strips])
    np.testing.assert_array_equal(matrix.exact(), want)
    rows = whole_rows(2, 128)
    parts = [group_products(packed_blocks(each), rows) for each in strips]
    np.testing.assert_array_equal(group_products(matrix, rows), np.concatenate(parts, 1))


@pytest.mark.parametrize("form", FORMS)
def test_a_row_has_the_same_bits_beside_any_other_rows(form: int) -> None:
    matrix = packed_blocks(random_strip(form, 48, 6))
    rows = np.random.default_rng(1).normal(size=(2 * TILES[form] + 3, 192)).astype(np.float32)
    rows[4, 7] = 500.0  # an outlier
    rows[5] = 0.0
    alone = np.concatenate([group_products(matrix, row[None]) for row in rows])
    for count in range(1, len(rows) + 1):
        np.testing.assert_array_equal(group_products(matrix, rows[:count]), alone[:count])
    np.testing.assert_array_equal(group_products(matrix, rows[::-1].copy()), alone[::-1])
    assert not alone[5].any()


@pytest.mark.parametrize(
    ("outlier", "bound"),
    [(1.0, 1e-2), (1000.0, 1e-4)],
    ids=["alike", "one element leads"],
)
@pytest.mark.parametrize("form", FORMS)
def test_rounding_rows_loses_next_to_nothing(form: int, outlier: float, bound: float) -> None:
    given = random_strip(form, 32, 4)
    rows = np.random.default_rng(1).normal(size=(5, 128)).astype(np.float32)
    rows[:, 70] *= outlier  # of a row with one, that element's group has most of the error
    want = rows.astype(np.float64) @ given.exact().astype(np.float64).T
    error = np.abs(group_products(packed_blocks(given), rows) - want)
    size = np.linalg.norm(rows, axis=1)[:, None] * np.linalg.norm(given.exact(), axis=1)
    assert (error / size).max() < bound


def test_groups_with_a_large_element_have_low_parts() -> None:
    row = np.random.default_rng(1).normal(size=128).astype(np.float32)
    row[:32] /= np.abs(row[:32]).max()
    row[40] = 30.0
    row[100] = -20.0
    out = np.full((ROW_LINES, 128), 7, np.uint8)
    put_groups(row, out)
    groups = out.reshape(4, -1)
    marks = groups[:, STEP : STEP + 16].copy().view(np.int32)
    assert marks[:, 3].tolist() == [0, 1, 0, 1]
    high, low = (
        groups[:, start : start + GROUP].copy().view(np.int8).astype(np.int32)
        for start in (0, LOW_PARTS)
    )
    assert (low.any(1) == marks[:, 3]).all()
    whole = np.where(marks[:, 3:], high << LOW_BITS, high) + low
    assert (marks[:, 2] == -whole.sum(1)).all()
    steps, sums = marks[:, 0].copy().view(np.float32), marks[:, 1].copy().view(np.float32)
    np.testing.assert_array_equal(sums, steps * whole.sum(1).astype(np.float32))
    error = np.abs(whole * steps[:, None] - row.reshape(4, 32)).max(1)
    assert (error <= 0.5001 * steps).all()


def test_an_outlier_costs_its_own_group_only() -> None:
    weight = torch.randn(32, 256, generator=torch.Generator().manual_seed(0))
    rows = torch.randn(4, 256, generator=torch.Generator().manual_seed(1))
    rows[:, 3] = 300.0
    largest = rows.abs().amax(1, keepdim=True)
    want = rows @ weight.T
    by_groups = BlockLinear([FloatBlocks(weight, 8)])(rows) - want
    by_rows = Int8Linear(weight)(rows / largest) * largest - want
    assert by_groups.abs().mean() < by_rows.abs().mean() / 2


@pytest.mark.parametrize("inputs", [32, 40, 100])
def test_floats_are_rounded_to_the_nearest_step(inputs: int) -> None:
    rows = np.random.default_rng(2).normal(size=(20, inputs)).astype(np.float32)
    for made, levels in ((to_eight(rows), 254), (to_four(rows), 15)):
        found = made.exact()[:, :inputs]
        span = rows.max() - rows.min()
        assert np.abs(found - rows).max() < 1.3 * span / levels
    linear = BlockLinear([FloatBlocks(torch.from_numpy(rows), 4)])
    assert (linear.outputs, linear.inputs) == (20, inputs)
    np.testing.assert_array_equal(linear.packed.exact(), to_four(rows).exact()[:, :inputs])


def test_a_narrower_range_never_raises_the_error() -> None:
    rows = np.random.default_rng(3).normal(size=(64, 64)).astype(np.float32)
    groups = rows.reshape(64, 2, 32)
    low, high = groups.min(-1, keepdims=True), groups.max(-1, keepdims=True)
    step = (high - low) / 15
    plain = (np.rint((groups - low) / step) * step + low).reshape(64, 64)
    assert np.square(to_four(rows).exact() - rows).sum() < np.square(plain - rows).sum()


def test_coarser_bits_make_an_int8_layer() -> None:
    linear = BlockLinear([FloatBlocks(torch.randn(32, 64), 4)])
    assert linear.rounded(8) is linear
    assert isinstance(linear.rounded(3), Int8Linear)

"""Kernels for AVX2 and AVX-VNNI: the bits of this processor's own, and which ones are chosen."""

from typing import Any

import numpy as np
import pytest
import torch
from numba import njit, types

from sapwood.backends.torch.cpu_int8 import int8_gemm
from sapwood.backends.torch.cpu_int8.block_gemm import group_products, round_groups
from sapwood.backends.torch.cpu_int8.block_tile import (
    FORMS,
    GROUP,
    MIN4,
    ROW_LINES,
    TILES,
    block_tile_maker,
)
from sapwood.backends.torch.cpu_int8.cpu_target import TARGET, TARGETS, CpuTarget, choose
from sapwood.backends.torch.cpu_int8.dot_products import DOTS, dots_of
from sapwood.backends.torch.cpu_int8.int_attention import IntKeys, products_maker
from sapwood.backends.torch.cpu_int8.int_values import int_sums_maker
from sapwood.backends.torch.cpu_int8.intrinsics import tile_maker
from sapwood.backends.torch.cpu_int8.linear import Int8Linear, SplitLinear
from sapwood.backends.torch.cpu_int8.simd import by_count, inline
from sapwood.errors import SapwoodError
from tests.helpers.int4_blocks import packed_blocks, random_strip

AVX512, AVXVNNI, AVX2 = TARGETS
EVERYTHING = dict.fromkeys(("avx2", "avxvnni", "avx512vnni"), True)
runs = pytest.mark.skipif(not int8_gemm.available(), reason="no processor for these kernels")
INT = types.int64


# ------------------------------------------------------------------------------------------ choice
def test_the_best_instructions_are_taken() -> None:
    assert choose(None, EVERYTHING) is AVX512
    assert choose(None, EVERYTHING | {"avx512vnni": False}) is AVXVNNI
    assert choose(None, {"avx2": True}) is AVX2
    assert choose(None, {}) is None


def test_a_target_can_be_forced() -> None:
    assert choose("avx2", EVERYTHING) is AVX2
    assert choose("none", EVERYTHING) is None
    with pytest.raises(SapwoodError, match="SAPWOOD_CPU=avx512 cannot be run"):
        choose("avx512", {"avx2": True})


# ------------------------------------------------------------------------------------------- bits
def others() -> list[CpuTarget]:
    """Targets beside the chosen one that this processor runs."""
    better = TARGETS.index(TARGET) if TARGET else len(TARGETS)
    plain = TARGET is AVX512  # AVX-512 has the 256-bit forms of AVX-VNNI's instructions
    return [target for target in TARGETS[better + 1 :] if plain or not target.vnni]


def int8_tiles(target: CpuTarget) -> Any:
    """Products of rows, whole or fine, by the kernels of a target."""
    dots = dots_of(target)
    counts = range(1, target.rows + 1)
    kernels = (tile_maker(count, False, dots) for count in counts)
    whole = inline(by_count(*kernels), types.void, *[INT] * 11)
    fine = inline(tile_maker(4, True, dots), types.void, *[INT] * 10)

    @njit
    def run(where: Any, rows: Any, count: int, out: Any, is_fine: bool) -> None:
        depth = where[4]
        stride = rows.shape[1]
        here = rows.ctypes.data
        apart = 4 * out.shape[1]
        for block in range(where[3]):
            weights = where[0] + block * depth * 64
            scales = where[1] + 64 * block
            zeros = where[2] + 64 * block
            to = out.ctypes.data + 64 * block
            if is_fine:
                fine(weights, scales, zeros, depth, here, stride, to, apart, here, 0)
            else:
                whole(count, weights, scales, zeros, depth, here, stride, to, apart, here, 0)

    return run


@runs
@pytest.mark.parametrize("target", others(), ids=lambda target: target.name)
def test_products_in_int8_have_the_same_bits_with_any_number_of_rows(target: CpuTarget) -> None:
    torch.manual_seed(0)
    weight = torch.randn(48, 96)
    weight[0] = weight.abs().max()  # the largest products of all: every pair is at its limit
    x = torch.rand(target.rows, 96) * 2 - 1
    x[0] = 1
    x[1] = -1
    run = int8_tiles(target)
    shift = np.uint8((DOTS.shift - dots_of(target).shift) % 256)
    for kind in (Int8Linear, SplitLinear):
        linear = kind(weight)
        for count in (2,) if kind.fine else range(1, target.rows + 1):
            grid = np.zeros(((1 + kind.fine) * count, 96), np.uint8)
            int8_gemm.round_rows(x[:count].numpy(), kind.fine, grid)
            out = np.empty((count, 48), np.float32)
            run(linear.packed.where, grid + shift, count, out, kind.fine)
            np.testing.assert_array_equal(out, linear(x).numpy()[:count])


@runs
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("target", others(), ids=lambda target: target.name)
def test_products_of_groups_have_the_same_bits_with_any_number_of_rows(
    target: CpuTarget, form: int
) -> None:
    matrix = packed_blocks(random_strip(form, 32, 4))
    matrix.bytes[-64:] = 255  # the largest weights of all
    most = min(target.rows, TILES[form])
    counts = range(1, most + 1) if form == MIN4 else (most,)
    kernels = (block_tile_maker(count, form, dots_of(target)) for count in counts)
    tile = inline(by_count(*kernels), types.void, *[INT] * 9)
    rows = np.random.default_rng(0).normal(size=(most, 4 * GROUP)).astype(np.float32)
    rows[0] = 1
    rows[1] = -1
    whole = np.zeros((ROW_LINES * most, 4 * GROUP), np.uint8)
    round_groups(rows, whole)

    @njit
    def run(table: Any, rows: Any, count: int, out: Any) -> None:
        here = rows.ctypes.data
        apart = 4 * out.shape[1]
        for block in range(table.shape[0] - 1):
            to = out.ctypes.data + 64 * block
            tile(count, table[block, 0], 4, here, ROW_LINES * rows.shape[1], to, apart, here, 0)

    want = group_products(matrix, rows)
    for count in counts:
        out = np.empty((count, 32), np.float32)
        run(matrix.table, whole, count, out)
        np.testing.assert_array_equal(out, want[:count])


@runs
@pytest.mark.parametrize("target", [*others(), TARGET], ids=lambda target: target.name)
def test_attention_is_exact(target: CpuTarget) -> None:
    dots = dots_of(target)
    products = products_maker(64, IntKeys(dots))
    sums = inline(int_sums_maker(2, dots), types.void, *[INT] * 6)

    @njit
    def run(queries: Any, keys: Any, out: Any, weights: Any, totals: Any) -> None:
        at = keys.ctypes.data
        many = keys.shape[0]
        products(queries.ctypes.data, 2, at, many, out.ctypes.data, many)
        sums(weights.ctypes.data, many, at, 2 * 64, many, totals.ctypes.data)

    noise = np.random.default_rng(0)
    queries, keys = (noise.integers(-511, 512, (count, 64)).astype(np.int16) for count in (2, 37))
    weights = noise.integers(0, 800, (2, 37)).astype(np.int16)
    out = np.empty((2, 37), np.float32)
    totals = np.zeros((2, 64), np.float32)
    run(queries, keys, out, weights, totals)
    np.testing.assert_array_equal(out, queries.astype(np.int64) @ keys.T.astype(np.int64))
    np.testing.assert_array_equal(totals, weights.astype(np.int64) @ keys.astype(np.int64))

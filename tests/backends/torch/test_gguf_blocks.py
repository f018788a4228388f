"""Blocks of GGUF files against the reference dequantisation."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from gguf.quants import dequantize, quantize

from sapwood.backends.torch import gguf_blocks as blocks
from sapwood.backends.torch.gguf_blocks import EXACT, GgufMatrix, floats_of
from sapwood.common.gguf_header import BLOCKS, GgufHeader, TensorInfo

OUTPUTS, INPUTS = 48, 512


def raw(kind: int) -> Any:
    """Bytes of a matrix: quantised where there is a quantiser, else random integers and factors."""
    noise = np.random.default_rng(kind)
    weights = noise.normal(size=(OUTPUTS, INPUTS)).astype(np.float32)
    form = GGMLQuantizationType(kind)
    if kind not in (blocks.Q4_K, blocks.Q5_K, blocks.Q6_K):
        return quantize(weights, form)
    size = BLOCKS[kind][1]
    made = noise.integers(0, 256, (OUTPUTS, INPUTS // 256, size), dtype=np.uint8)
    steps = np.full(1, 0.01, np.float16).view(np.uint8)
    starts = (size - 2,) if kind == blocks.Q6_K else (0, 2)
    for start in starts:
        made[..., start : start + 2] = steps
    return made.reshape(OUTPUTS, -1)


def matrix(path: Path, kind: int, heads: int | None = None) -> tuple[GgufMatrix, Any]:
    """A matrix in a file behind some other bytes, and the reference's floats."""
    content = raw(kind)
    path.write_bytes(bytes(96) + content.tobytes())
    tensor = TensorInfo("it", (INPUTS, OUTPUTS), 32, content.nbytes, kind)
    header = GgufHeader(data=64, tensors=[tensor])
    reference = dequantize(content, GGMLQuantizationType(kind))
    return GgufMatrix(path, header, tensor, heads), np.asarray(reference, np.float32)


@pytest.mark.parametrize("kind", [blocks.Q4_0, blocks.Q4_1, blocks.Q5_0, blocks.Q8_0])
def test_small_blocks_are_kept_to_the_bit(tmp_path: Path, kind: int) -> None:
    made, want = matrix(tmp_path / "it", kind)
    found = np.concatenate([strip.exact() for strip in made.strips()])
    np.testing.assert_array_equal(found, want)
    np.testing.assert_array_equal(made.floats(), want)


def test_scales_of_q4_k_are_rounded_to_half_precision(tmp_path: Path) -> None:
    made, want = matrix(tmp_path / "it", blocks.Q4_K)
    assert blocks.Q4_K in EXACT
    found = np.concatenate([strip.exact() for strip in made.strips()])
    assert 0 < np.abs(found - want).max() < 2**-10 * np.abs(want).max()


@pytest.mark.parametrize("kind", [blocks.Q5_1, blocks.Q5_K, blocks.Q6_K, blocks.F16])
def test_others_are_rounded_to_eight_bits(tmp_path: Path, kind: int) -> None:
    made, want = matrix(tmp_path / "it", kind)
    found = np.concatenate([strip.exact() for strip in made.strips()])
    largest = np.abs(want).reshape(OUTPUTS, -1, 32).max(-1).repeat(32, -1)
    assert (np.abs(found - want) <= largest / 127 * 0.51).all()


def test_rows_of_rotated_heads_are_brought_in_order(tmp_path: Path) -> None:
    plain, want = matrix(tmp_path / "it", blocks.Q4_1)
    turned, _ = matrix(tmp_path / "it", blocks.Q4_1, heads=4)
    # as transformers does: pairs side by side become two halves of a head
    order = want.reshape(4, OUTPUTS // 8, 2, INPUTS).swapaxes(1, 2).reshape(want.shape)
    np.testing.assert_array_equal(turned.floats(), order)
    np.testing.assert_array_equal(plain.floats(), want)


@pytest.mark.parametrize("kind", [blocks.Q8_0, blocks.Q6_K, blocks.F32])
def test_rows_of_an_embedding(tmp_path: Path, kind: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "KEPT", 2)
    made, want = matrix(tmp_path / "it", kind)
    tokens = np.array([3, 3, 47, 0, 9])
    for _ in range(2):
        found = made.take(tokens)
        np.testing.assert_array_equal(found, want[tokens])
        found[:] = 0  # a copy: nothing that is kept changes
    np.testing.assert_array_equal(made[slice(5, 9)].numpy(), want[5:9])


@pytest.mark.parametrize("kind", [blocks.Q8_0, blocks.Q4_1, blocks.Q6_K])
def test_an_embedding_for_drafters_is_in_eight_bits(tmp_path: Path, kind: int) -> None:
    made, want = matrix(tmp_path / "it", kind)
    found = made.eight_bit_blocks()
    assert found.shape == (OUTPUTS, INPUTS // 32, 34)
    if kind == blocks.Q8_0:
        assert not found.flags.owndata  # the mapped file
        assert np.array_equal(found.reshape(OUTPUTS, -1), raw(kind))
    rows = dequantize(found.reshape(OUTPUTS, -1), GGMLQuantizationType(blocks.Q8_0))
    largest = np.abs(want).reshape(OUTPUTS, -1, 32).max(-1).repeat(32, -1)
    # half a step, and 127 times half a unit of the float16 scale
    assert (np.abs(rows - want) <= largest / 127 * 0.57).all()


def test_floats_are_read_as_they_are() -> None:
    rows = np.random.default_rng(0).normal(size=(3, 64)).astype(np.float32)
    np.testing.assert_array_equal(floats_of(rows.view(np.uint8), blocks.F32), rows)

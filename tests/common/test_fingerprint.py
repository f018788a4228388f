"""Weights are known again in any format, and other weights are not."""

from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from gguf.quants import dequantize, quantize

from sapwood.common.fingerprint import EMBEDDING, Fingerprint, TensorSample, sampled_rows
from sapwood.core.array_types import FloatArray

SHAPE = (96, 256)
NAMES = (EMBEDDING, "blk.0.attn_v", "blk.0.ffn_down", "blk.1.attn_v")
FORMATS = ("F32", "F16", "BF16", "Q8_0", "Q5_1", "Q5_0", "Q4_1", "Q4_0")


def weights(seed: int) -> dict[str, FloatArray]:
    noise = np.random.default_rng(seed)
    return {name: noise.standard_t(6, SHAPE).astype(np.float32) * 0.05 for name in NAMES}


def tuned(given: dict[str, FloatArray], share: float) -> dict[str, FloatArray]:
    """The weights after a fine-tune that has moved each matrix by this share of its norm."""
    noise = np.random.default_rng(9)
    return {
        name: (matrix + share * matrix.std() * noise.standard_normal(SHAPE)).astype(np.float32)
        for name, matrix in given.items()
    }


def fingerprint(given: dict[str, FloatArray], form: str = "F32") -> Fingerprint:
    kind = GGMLQuantizationType[form]
    rows = sampled_rows(SHAPE[0])
    return Fingerprint(
        {
            name: TensorSample.of(SHAPE, dequantize(quantize(matrix, kind), kind)[rows])
            for name, matrix in given.items()
        }
    )


@pytest.mark.parametrize("form", FORMATS)
def test_the_same_weights_match_in_every_pair_of_formats(form: str) -> None:
    mine = fingerprint(weights(0), form)
    assert all(mine.matches(fingerprint(weights(0), other)) for other in FORMATS)


@pytest.mark.parametrize("form", FORMATS)
def test_weights_of_another_training_match_in_no_format(form: str) -> None:
    mine = fingerprint(weights(0), form)
    assert not any(mine.matches(fingerprint(weights(1), other)) for other in FORMATS)


@pytest.mark.parametrize(("form", "share"), [("F32", 0.01), ("Q8_0", 0.01), ("Q4_1", 0.1)])
def test_a_fine_tune_beyond_the_rounding_error_is_another_model(form: str, share: float) -> None:
    mine = fingerprint(weights(0), form)
    assert not mine.matches(fingerprint(tuned(weights(0), share)))
    assert not mine.matches(fingerprint(tuned(weights(0), share), form))


def test_a_fine_tune_of_a_single_sampled_matrix_is_another_model() -> None:
    changed = weights(0)
    changed[NAMES[1]] = tuned(weights(0), 0.02)[NAMES[1]]
    assert not fingerprint(weights(0)).matches(fingerprint(changed))


def test_another_shape_is_another_model() -> None:
    mine = fingerprint(weights(0))
    other = {
        name: TensorSample((SHAPE[0] + 1, SHAPE[1]), sample.values, sample.step)
        for name, sample in mine.tensors.items()
    }
    assert not mine.matches(Fingerprint(other))


def test_without_an_embedding_or_enough_common_tensors_nothing_matches() -> None:
    mine = fingerprint(weights(0))
    rest = {name: sample for name, sample in mine.tensors.items() if name != EMBEDDING}
    assert not mine.matches(Fingerprint(rest))
    assert not mine.matches(Fingerprint({EMBEDDING: mine.tensors[EMBEDDING]}))


def test_constant_weights_have_no_grid() -> None:
    assert TensorSample.of(SHAPE, np.zeros((8, 64), np.float32)).step == 0.0


def test_what_is_stored_is_read_again(tmp_path: Path) -> None:
    mine = fingerprint(weights(0), "Q4_1")
    assert Fingerprint.read(tmp_path) is None
    mine.save(tmp_path)
    found = Fingerprint.read(tmp_path / "eagle3")  # one file serves all parts of a model
    assert found is not None
    assert found.digest == mine.digest
    assert found.matches(fingerprint(weights(0)))


@pytest.mark.parametrize(
    "damage", ["", "[]", '{"format": 2}', '{"format": 1, "tensors": {"a": 1}}']
)
def test_a_damaged_file_is_no_fingerprint(tmp_path: Path, damage: str) -> None:
    (tmp_path / "target.json").write_text(damage)
    assert Fingerprint.read(tmp_path) is None

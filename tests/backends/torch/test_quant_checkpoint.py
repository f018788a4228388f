"""Checkpoints in AWQ's and GPTQ's layouts against numbers that were packed one by one."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sapwood.backends.torch.load import load
from sapwood.backends.torch.quant_checkpoint import (
    CheckpointFormat,
    QuantCheckpoint,
    unpack_awq,
    unpack_words,
)
from sapwood.backends.torch.quant_weight import ZERO4, stacked
from sapwood.core.protocols import TreeInput
from sapwood.errors import SapwoodError
from sapwood.testing import backend_contract
from tests.helpers.quant_checkpoints import Layout, awq_rows, gptq_rows, settings, write

LAYOUTS = {
    "awq": Layout("awq"),
    "awq of whole rows": Layout("awq", group=-1),
    "gptq": Layout(),
    "gptq in larger groups": Layout(group=96),
    "gptq, symmetric": Layout(symmetric=True),
    "gptq v2": Layout(version="gptq_v2"),
    "gptq in 8 bits": Layout(bits=8),
    "gptq in the order of activations": Layout(order=True),
}
LINEAR = "model.layers.1.mlp.down_proj"  # 96 inputs


def opened(folder: Path) -> QuantCheckpoint:
    layout = CheckpointFormat.read(folder)
    assert layout is not None
    return QuantCheckpoint(folder, "tiny", layout)


def weight(model: Any) -> torch.Tensor:
    found: torch.Tensor = model.get_submodule(LINEAR).weight.detach()
    return found


def test_numbers_come_out_of_words_in_their_order() -> None:
    numbers = np.random.default_rng(0).integers(0, 16, (24, 16))
    assert np.array_equal(unpack_words(gptq_rows(numbers).T, 4).T, numbers)
    assert np.array_equal(unpack_awq(awq_rows(numbers)), numbers)
    bytes_ = np.random.default_rng(1).integers(0, 256, (8, 3))
    assert np.array_equal(unpack_words(gptq_rows(bytes_, 8).T, 8).T, bytes_)


@pytest.mark.parametrize("name", LAYOUTS)
def test_weights_are_dequantised(name: str, tmp_path: Path) -> None:
    model = write(tmp_path, LAYOUTS[name])
    found = opened(tmp_path).weight(f"{LINEAR}.weight")
    assert torch.equal(found, weight(model))


@pytest.mark.parametrize("name", ["awq", "gptq", "gptq in larger groups", "gptq, symmetric"])
def test_blocks_stand_for_the_same_weights(name: str, tmp_path: Path) -> None:
    model = write(tmp_path, LAYOUTS[name])
    checkpoint = opened(tmp_path)
    [packed] = checkpoint.packed([LINEAR])
    assert packed.form == ZERO4
    assert torch.equal(packed.floats(), weight(model))
    if LAYOUTS[name].group == 32:
        parts = ("q", "k", "v")
        fused = stacked(checkpoint.packed([f"model.layers.0.self_attn.{x}_proj" for x in parts]))
        several = [model.get_submodule(f"model.layers.0.self_attn.{x}_proj") for x in parts]
        assert torch.equal(fused.floats(), torch.cat([part.weight.detach() for part in several]))


def test_an_order_of_activations_has_no_blocks(tmp_path: Path) -> None:
    write(tmp_path, LAYOUTS["gptq in the order of activations"])
    with pytest.raises(SapwoodError, match=r"order of its activations.*use --dtype int8"):
        opened(tmp_path).packed([LINEAR])


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        ({"bits": 3}, "GPTQ weights of 3 bits, which have no products"),
        ({"quant_method": "awq", "version": "gemv"}, "in the layout 'gemv'; use one in"),
        ({"quant_method": "awq", "bits": 8}, "AWQ weights of 8 bits"),
    ],
)
def test_other_layouts_are_refused(change: dict[str, Any], wanted: str, tmp_path: Path) -> None:
    config = {"quantization_config": {**settings(Layout()), **change}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(SapwoodError, match=wanted):
        CheckpointFormat.read(tmp_path)


@pytest.mark.parametrize("content", ["{}", "[]", "{", '{"quantization_config": {}}'])
def test_plain_folders_have_no_layout(content: str, tmp_path: Path) -> None:
    assert CheckpointFormat.read(tmp_path) is None
    (tmp_path / "config.json").write_text(content)
    assert CheckpointFormat.read(tmp_path) is None


def test_missing_tensors_are_named(tmp_path: Path) -> None:
    write(tmp_path, Layout())
    checkpoint = opened(tmp_path)
    del checkpoint.files.entries[f"{LINEAR}.scales"]  # type: ignore[attr-defined]
    with pytest.raises(
        SapwoodError, match=r"lacks weights: model\.layers\.1\.mlp\.down_proj\.scales"
    ):
        checkpoint.weight(f"{LINEAR}.weight")
    with pytest.raises(SapwoodError, match=r"lacks weights: model\.layers\.9"):
        checkpoint.weight("model.layers.9.mlp.up_proj.weight")


@pytest.mark.parametrize("name", ["awq", "gptq in the order of activations"])
@pytest.mark.parametrize("tied", [False, True])
def test_a_cpu_runs_the_floats_that_a_checkpoint_stands_for(
    name: str, tied: bool, tmp_path: Path
) -> None:
    model = write(tmp_path, LAYOUTS[name], tie_word_embeddings=tied)
    backend, _ = load(str(tmp_path), device="cpu", dtype="float32")
    tokens = [5, 6, 7, 8]
    [scores] = backend.score(
        [TreeInput(backend.open(tokens[:2]), backend_contract.line(tokens[2:]))]
    )
    with torch.inference_mode():
        wanted = model(torch.tensor([tokens])).logits[0, 2:]
    for row in range(2):
        assert np.allclose(scores.logits(row), wanted[row].numpy(), atol=1e-4)


@pytest.mark.parametrize("dtype", [None, "int8", "int4"])
def test_a_cpu_packs_a_checkpoint_again(dtype: str | None, tmp_path: Path) -> None:
    write(tmp_path, Layout("awq"), "llama")
    backend, _ = load(str(tmp_path), device="cpu", dtype=dtype)
    assert backend.info.dtype == (dtype or "int8")

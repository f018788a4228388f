"""Folders of gpt-oss: read one expert at a time, with the bits of the whole model."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from sapwood.backends.torch.architectures import layers_of
from sapwood.backends.torch.backend import TorchBackend
from sapwood.backends.torch.cpu_int8 import int8_gemm
from sapwood.backends.torch.expert_load import ExpertFolder, open_experts
from sapwood.backends.torch.lazy_model import LazyModel
from sapwood.backends.torch.load import build, load, read_quietly, silent
from sapwood.backends.torch.mxfp4 import dequantize
from sapwood.backends.torch.weights import find_weights
from sapwood.errors import SapwoodError
from sapwood.testing import backend_contract, check_backend
from tests.helpers import oss_folders

pytestmark = pytest.mark.skipif(
    not int8_gemm.available(), reason="this processor has no dot products in whole numbers"
)
TEXT = [*range(1, 24), 5, 9, 2]  # longer than the window


def forbidden() -> Any:
    raise AssertionError("transformers was asked")


def direct(folder: Path, bits: int = 8) -> TorchBackend:
    found = open_experts(folder, "model", forbidden, bits)
    assert found is not None
    return found


def by_transformers(folder: Path, dtype: str) -> TorchBackend:
    """The same model, read whole and then packed."""
    read = read_quietly(folder, "model", torch.device("cpu"), torch.float32)
    return build(read, "model", dtype, silent)


def rows(backend: TorchBackend) -> np.ndarray:
    return np.stack([backend_contract.after(backend, TEXT[:size]) for size in (1, 7, 26)])


# --------------------------------------------------------------------------------------- the format
def test_every_byte_of_a_block_has_two_weights() -> None:
    blocks = torch.arange(256, dtype=torch.uint8).reshape(2, 8, 16)
    exponents = torch.tensor([[127, 128, 126, 1, 0, 250, 127, 120]] * 2, dtype=torch.uint8)
    found = dequantize(blocks, exponents)
    assert found.shape == (2, 256)
    for at in range(512):
        byte = at // 2
        code = byte & 15 if at % 2 == 0 else byte >> 4
        sign, power, fraction = code >> 3, code >> 1 & 3, code & 1
        # as any small float: without a leading one where the exponent is zero
        size = (1 + fraction / 2) * 2.0 ** (power - 1) if power else fraction / 2
        want = (-1) ** sign * size * 2.0 ** (int(exponents[0, byte // 16 % 8]) - 127)
        assert found.flatten()[at].item() == want


# ------------------------------------------------------------------------------------ the same bits
@pytest.mark.parametrize("tied", [False, True], ids=["own-head", "tied"])
@pytest.mark.parametrize("bits", [8, 4])
def test_a_folder_of_floats(tmp_path: Path, bits: int, tied: bool) -> None:
    folder = oss_folders.float_folder(tmp_path / "model", tie_word_embeddings=tied)
    ours, theirs = direct(folder, bits), by_transformers(folder, f"int{bits}")
    assert np.array_equal(rows(ours), rows(theirs))
    assert (ours.info.dtype, ours.info.context) == (theirs.info.dtype, theirs.info.context)


def test_a_folder_of_blocks_says_what_the_same_values_say(tmp_path: Path) -> None:
    exact = tmp_path / "exact"
    folder = oss_folders.mxfp4_folder(tmp_path / "model", exact)
    found = rows(direct(folder))
    assert np.array_equal(found, rows(by_transformers(exact, "int8")))
    whole = TorchBackend(read_quietly(exact, "model", torch.device("cpu"), torch.float32))
    assert np.corrcoef(found.ravel(), rows(whole).ravel())[0, 1] > 0.99


def test_in_four_bits_blocks_stay_as_they_are(tmp_path: Path) -> None:
    exact = tmp_path / "exact"
    backend = direct(oss_folders.mxfp4_folder(tmp_path / "model", exact), 4)
    assert backend.info.dtype == "int4"
    read = read_quietly(exact, "model", torch.device("cpu"), torch.float32)
    network: Any = backend.network
    for packed, layer in zip(network.layers, layers_of(read), strict=True):
        for linear, weights in ((packed.gate_up, layer.gate_up), (packed.down, layer.down)):
            for part, weight in zip(linear.parts, weights, strict=True):
                assert np.array_equal(part.packed.exact(), weight.numpy())
    found, want = rows(backend), rows(TorchBackend(read))
    assert np.corrcoef(found.ravel(), want.ravel())[0, 1] > 0.995
    check_backend(backend)


def test_float32_is_that_of_the_exact_values(tmp_path: Path) -> None:
    exact = tmp_path / "exact"
    folder = oss_folders.mxfp4_folder(tmp_path / "model", exact)
    found, want = (
        rows(load(str(path), device="cpu", dtype="float32")[0]) for path in (folder, exact)
    )
    np.testing.assert_allclose(found, want, atol=1e-4)


def test_loading_takes_this_way(tmp_path: Path) -> None:
    folder = oss_folders.mxfp4_folder(tmp_path / "model", tmp_path / "exact")
    said: list[str] = []
    found, _ = load(str(folder), device="cpu", progress=said.append)
    assert isinstance(found.model, LazyModel)
    assert found.info.dtype == "int8"
    assert "packing layer 2 of 2" in said
    assert found.model.get_output_embeddings()(torch.ones(1, 64)).shape == (1, 61)


def test_experts_are_read_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = oss_folders.mxfp4_folder(tmp_path / "model", tmp_path / "exact")
    shapes = []

    def noted(blocks: torch.Tensor, exponents: torch.Tensor) -> torch.Tensor:
        shapes.append(tuple(blocks.shape))
        return dequantize(blocks, exponents)

    monkeypatch.setattr("sapwood.backends.torch.expert_load.dequantize", noted)
    direct(folder)
    assert set(shapes) == {(192, 2, 16), (64, 3, 16)}
    assert len(shapes) == 2 * 2 * 6  # layers, matrices and experts


# ---------------------------------------------------------------------------------- what is refused
def damage(folder: Path, change: Any) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


@pytest.mark.parametrize(
    "name",
    [
        "model.layers.1.self_attn.sinks",
        "model.layers.0.mlp.experts.down_proj_scales",
        "model.layers.1.mlp.experts.gate_up_proj_bias",
    ],
)
def test_a_folder_that_lacks_a_tensor_is_left_to_transformers(tmp_path: Path, name: str) -> None:
    folder = oss_folders.mxfp4_folder(tmp_path / "model", tmp_path / "exact")
    damage(folder, lambda tensors: tensors.pop(name))
    assert open_experts(folder, "model", forbidden) is None


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    folder = oss_folders.float_folder(tmp_path / "model")
    damage(folder, lambda tensors: tensors.pop("model.layers.1.self_attn.sinks"))
    with pytest.raises(SapwoodError, match=r"lacks weights: model\.layers\.1\.self_attn\.sinks"):
        load(str(folder), device="cpu")


@pytest.mark.parametrize(
    "change",
    [
        {"quantization_config": {"quant_method": "gptq"}},
        {"model_type": "llama"},
        {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}},
    ],
    ids=str,
)
def test_what_is_not_plainly_ours_is_left_to_transformers(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    folder = oss_folders.float_folder(tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | change))
    assert open_experts(folder, "model", forbidden) is None


def test_layers_come_one_at_a_time(tmp_path: Path) -> None:
    """No layer is read before it is asked for."""
    folder = oss_folders.float_folder(tmp_path / "model")
    said: list[str] = []
    weights = find_weights(folder)
    assert weights is not None
    found = ExpertFolder.read(folder, "model", weights)
    assert found is not None
    layers = found.packed_layers(8, said.append)
    next(layers)
    assert said == ["packing layer 1 of 2"]

"""GGUF files in int8: the bits of the converted model, without a float32 copy on the disk."""

from pathlib import Path

import numpy as np
import pytest
import torch

from sapwood.backends.torch import load as loader
from sapwood.backends.torch.backend import TorchBackend
from sapwood.backends.torch.cpu_int8 import int8_gemm
from sapwood.backends.torch.gguf import INT8_WEIGHTS, converted, described
from sapwood.backends.torch.gguf_load import open_gguf_in_int8
from sapwood.common.gguf_header import read_header
from sapwood.testing import backend_contract
from tests.helpers import other_gguf, tiny_gguf

pytestmark = pytest.mark.skipif(not int8_gemm.available(), reason="no processor for these kernels")

TEXT = [3, 14, 15, 92, 65, 35, 89, 79]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SAPWOOD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("sapwood.backends.torch.gguf_load.WORTH", 0)  # save small models too
    return tmp_path / "cache"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tiny_gguf.write(tmp_path / "tiny.gguf", "Q4_1", merged=True)


def opened(path: Path) -> tuple[TorchBackend, list[str]]:
    """The backend of a file in int8, and the progress messages."""
    said: list[str] = []
    backend, _ = loader.load(str(path), device="cpu", dtype="int8", progress=said.append)
    assert backend.info.dtype == "int8"
    return backend, said


def stored(cache: Path) -> Path:
    """The file of int8 weights."""
    [found] = cache.rglob(INT8_WEIGHTS)
    return found


def converted_in_int8(path: Path) -> TorchBackend:
    """The file converted to float32 by transformers, then quantised."""
    folder = converted(path, loader.silent)
    whole = loader.read_quietly(folder, "model", torch.device("cpu"), torch.float32)
    return loader.build(whole, "model", "int8", loader.silent)


def packed_layers(said: list[str]) -> int:
    return sum(message.startswith("packing layer") for message in said)


@pytest.mark.parametrize("kind", ["Q4_1", "Q8_0", "Q5_0", "F16"])
def test_logits_have_the_bits_of_the_converted_model(
    tmp_path: Path, cache: Path, kind: str
) -> None:
    path = tiny_gguf.write(tmp_path / "tiny.gguf", kind, merged=True)
    first, said = opened(path)
    assert packed_layers(said) == tiny_gguf.LAYERS
    assert not list(cache.rglob("*.safetensors"))
    again, said = opened(path)
    assert packed_layers(said) == 0
    reference = converted_in_int8(path)
    rows = [backend_contract.after(each, TEXT) for each in (first, again, reference)]
    assert np.array_equal(rows[0], rows[1])
    assert np.array_equal(rows[0], rows[2])


@pytest.mark.parametrize("name", other_gguf.ARCHITECTURES)
def test_other_architectures_have_the_bits_of_the_converted_model(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    other_gguf.use_byte_tokenizer(monkeypatch)
    path = other_gguf.write(tmp_path / "tiny.gguf", name)
    first, said = opened(path)
    assert packed_layers(said) == other_gguf.LAYERS
    assert not list(cache.rglob("*.safetensors"))
    again, said = opened(path)
    assert packed_layers(said) == 0
    backend_contract.tree_equals_paths(again, np.random.default_rng(0), 0.0)
    reference = converted_in_int8(path)
    rows = [backend_contract.after(each, TEXT) for each in (first, again, reference)]
    assert np.array_equal(rows[0], rows[1])
    assert np.array_equal(rows[0], rows[2])


def test_a_model_that_lacks_a_tensor_is_converted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other_gguf.use_byte_tokenizer(monkeypatch)
    path = other_gguf.write(tmp_path / "tiny.gguf", "gemma3")
    header = read_header(path)
    header.tensors = [one for one in header.tensors if "blk.1.ffn_up" not in one.name]
    folder = described(path, loader.silent)
    found = open_gguf_in_int8(path, header, folder, "tiny", lambda: None, loader.silent)
    assert found == "its tensor model.layers.1.mlp.up_proj.weight is not that of its architecture"


def test_the_contract_holds_for_stored_weights(path: Path) -> None:
    opened(path)
    backend_contract.check_backend(opened(path)[0])


def test_the_same_file_under_another_name_has_the_same_weights(
    tmp_path: Path, path: Path, cache: Path
) -> None:
    opened(path)
    other = tmp_path / "other.gguf"
    other.write_bytes(path.read_bytes())
    _, said = opened(other)
    assert packed_layers(said) == 0
    stored(cache)  # there is one


@pytest.mark.parametrize("fault", ["cut", "empty", "other facts", "other magic", "no header"])
def test_a_damaged_file_is_made_again(path: Path, cache: Path, fault: str) -> None:
    want = backend_contract.after(opened(path)[0], TEXT)
    place = stored(cache)
    whole = place.read_bytes()
    contents = {
        "cut": whole[:-64],
        "empty": b"",
        "other facts": whole.replace(b'"torch": "', b'"torch": "0', 1),
        "other magic": b"X" + whole[1:],
        "no header": whole[:24] + b"{" * 100,
    }
    place.write_bytes(contents[fault])
    backend, said = opened(path)
    assert packed_layers(said) == tiny_gguf.LAYERS
    assert np.array_equal(backend_contract.after(backend, TEXT), want)
    assert place.read_bytes() == whole


def test_a_disk_that_takes_nothing_is_no_error(
    path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr("sapwood.backends.torch.cpu_int8.array_file.write_to", refuse)
    backend, _ = opened(path)
    backend_contract.after(backend, TEXT)
    assert not list(cache.rglob(f"*{INT8_WEIGHTS}*"))

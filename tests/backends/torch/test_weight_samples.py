"""Fingerprints of files: the same weights as GGUF, safetensors or under other names."""

import shutil
from pathlib import Path

import pytest
import torch

from sapwood.backends.torch.gguf_samples import fingerprint_of_gguf
from sapwood.backends.torch.resolve_model import built_in_file
from sapwood.backends.torch.weight_samples import fingerprint_of_folder
from sapwood.common.drafter_store import SHIPPED
from sapwood.common.fingerprint import EMBEDDING, Fingerprint
from sapwood.common.gguf_header import read_header
from tests.helpers import tiny_gguf, tiny_models


def of_gguf(path: Path) -> Fingerprint:
    found = fingerprint_of_gguf(path, read_header(path))
    assert found is not None
    return found


def of_folder(folder: Path) -> Fingerprint:
    found = fingerprint_of_folder(folder)
    assert found is not None
    return found


@pytest.mark.parametrize("kind", ["F32", "Q8_0", "Q4_0"])
def test_a_gguf_file_and_a_folder_of_the_same_weights_match(tmp_path: Path, kind: str) -> None:
    tiny_gguf.model().save_pretrained(tmp_path / "folder")
    folder = of_folder(tmp_path / "folder")
    assert len(folder.tensors) == 1 + 5 * tiny_gguf.LAYERS
    assert of_gguf(tiny_gguf.write(tmp_path / "one.gguf", kind)).matches(folder)


def test_a_copy_in_another_dtype_and_in_several_files_matches(tmp_path: Path) -> None:
    model = tiny_gguf.model()
    model.save_pretrained(tmp_path / "one")
    model.to(torch.bfloat16).save_pretrained(tmp_path / "two", max_shard_size="50KB")
    assert not (tmp_path / "two" / "model.safetensors").exists()
    assert of_folder(tmp_path / "one").matches(of_folder(tmp_path / "two"))


def test_a_tuned_layer_is_another_model(tmp_path: Path) -> None:
    model = tiny_gguf.model()
    model.save_pretrained(tmp_path / "one")
    with torch.no_grad():
        model.model.layers[1].self_attn.v_proj.weight.mul_(1.02)
    model.save_pretrained(tmp_path / "two")
    assert not of_folder(tmp_path / "one").matches(of_folder(tmp_path / "two"))


def test_a_model_with_other_layer_names_matches_its_own_copy(tmp_path: Path) -> None:
    tiny_models.make("gpt2").save_pretrained(tmp_path / "one")
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    one = of_folder(tmp_path / "one")
    assert EMBEDDING in one.tensors
    assert len(one.tensors) > 3
    assert one.matches(of_folder(tmp_path / "two"))


def test_a_folder_without_weights_has_no_fingerprint(tmp_path: Path) -> None:
    assert fingerprint_of_folder(tmp_path) is None


def test_shipped_parts_know_the_built_in_model() -> None:
    found = Fingerprint.read(SHIPPED / "smollm2" / "eagle3")
    assert found is not None
    assert found.matches(of_gguf(built_in_file()))

"""Tensors of a folder by name: where they lie, what fits, and reading a few rows."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from sapwood.backends.torch.weights import (
    ADAPTER,
    INDEX,
    WEIGHTS,
    TensorEntry,
    TensorFiles,
    contents,
    find_weights,
)

ONE = {"a": torch.arange(6.0).view(2, 3), "half": torch.arange(4.0).half()}
TWO = {"b": torch.arange(8.0).view(4, 2).bfloat16(), "ids": torch.arange(3)}


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    save_file({**ONE, **TWO}, tmp_path / WEIGHTS)
    return tmp_path


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    save_file(ONE, tmp_path / "one.safetensors")
    save_file(TWO, tmp_path / "two.safetensors")
    names = dict.fromkeys(ONE, "one.safetensors") | dict.fromkeys(TWO, "two.safetensors")
    write_index(tmp_path, {"weight_map": names})
    return tmp_path


def write_index(folder: Path, record: Any) -> None:
    (folder / INDEX).write_text(json.dumps(record))


def opened(folder: Path) -> TensorFiles:
    found = find_weights(folder)
    assert found is not None
    return found


def test_a_files_header_says_what_it_holds(whole: Path) -> None:
    file = whole / WEIGHTS
    assert contents(file) == {
        "a": TensorEntry(file, (2, 3), "F32"),
        "half": TensorEntry(file, (4,), "F16"),
        "b": TensorEntry(file, (4, 2), "BF16"),
        "ids": TensorEntry(file, (3,), "I64"),
    }


def test_one_file_comes_before_an_index(whole: Path) -> None:
    write_index(whole, {"weight_map": {"a": "none.safetensors"}})
    assert set(opened(whole).entries) == {"a", "half", "b", "ids"}


def test_shards_are_found_by_the_index(shards: Path) -> None:
    files = opened(shards)
    assert [file.name for file in files.files] == ["one.safetensors", "two.safetensors"]
    assert files.size == 6 + 4 + 8 + 3
    assert files.entries["b"].file.name == "two.safetensors"


def test_tensors_that_the_index_does_not_name_are_left_out(shards: Path) -> None:
    write_index(shards, {"weight_map": {"a": "one.safetensors", "gone": "one.safetensors"}})
    assert set(opened(shards).entries) == {"a"}


@pytest.mark.parametrize(
    "index",
    [
        None,
        "not json",
        [],
        {},
        {"weight_map": ["a"]},
        {"weight_map": {"a": 7}},
        {"weight_map": {"a": "missing.safetensors"}},
        {"weight_map": {"a": "text.safetensors"}},
    ],
    ids=str,
)
def test_what_cannot_be_read_is_left_to_transformers(tmp_path: Path, index: Any) -> None:
    (tmp_path / "text.safetensors").write_text("no tensors")
    if isinstance(index, str):
        (tmp_path / INDEX).write_text(index)
    elif index is not None:
        write_index(tmp_path, index)
    assert find_weights(tmp_path) is None


def test_an_adapter_beside_the_weights_is_left_to_transformers(whole: Path) -> None:
    (whole / ADAPTER).write_text("{}")
    assert find_weights(whole) is None


def test_what_fits_is_there_in_its_shape_as_floats(shards: Path) -> None:
    files = opened(shards)
    assert files.fit({"a": (2, 3), "b": (4, 2), "half": (4,)})
    assert files.fit({})
    assert not files.fit({"a": (3, 2)})
    assert not files.fit({"c": (1,)})
    assert not files.fit({"ids": (3,)})


def test_tensors_are_read_in_single_precision(shards: Path) -> None:
    found = opened(shards).read(["b", "a", "half"])
    assert all(tensor.dtype == torch.float32 for tensor in found.values())
    assert torch.equal(found["a"], ONE["a"])
    assert torch.equal(found["b"], TWO["b"].float())
    assert torch.equal(found["half"], ONE["half"].float())


def test_a_copy_can_be_written(whole: Path) -> None:
    before = (whole / WEIGHTS).read_bytes()
    files = opened(whole)
    copy = files.copy("a")
    copy.zero_()
    assert torch.equal(files.copy("a"), ONE["a"])
    assert (whole / WEIGHTS).read_bytes() == before


def test_a_view_is_in_the_files_own_numbers(whole: Path) -> None:
    files = opened(whole)
    assert files.view("b").dtype == torch.bfloat16
    assert torch.equal(files.view("ids"), TWO["ids"])


@pytest.mark.parametrize("rows", [slice(0, 2), slice(1, 4), slice(2, 2), slice(3, 9)])
def test_rows_of_a_matrix_are_read_a_few_at_a_time(shards: Path, rows: slice) -> None:
    strips = opened(shards).strips("b")
    assert strips.shape == (4, 2)
    assert torch.equal(strips[rows], TWO["b"][rows])

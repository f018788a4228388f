"""The disk cache of channel statistics: its names, what it refuses, and how many it keeps."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from sapwood.backends.torch import activation_cache
from sapwood.backends.torch.activation_cache import place_of, recall, remember

SHAPE = (2, 3)
HEARD = torch.arange(6.0).view(SHAPE)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SAPWOOD_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    file = tmp_path / "model.safetensors"
    file.write_bytes(b"weights")
    return file


def test_what_is_remembered_is_recalled(weights: Path) -> None:
    place = place_of([weights])
    assert recall(place, SHAPE) is None
    remember(place, HEARD)
    found = recall(place, SHAPE)
    assert found is not None
    assert torch.equal(found, HEARD)


def test_the_name_lies_in_the_cache_folder_and_stays(weights: Path, cache: Path) -> None:
    assert cache in place_of([weights]).parents
    assert place_of([weights]) == place_of([weights])


def test_other_weights_have_another_name(weights: Path) -> None:
    before = place_of([weights])
    stat = weights.stat()
    weights.write_bytes(b"WEIGHTS")
    os.utime(weights, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert place_of([weights]) != before


def test_a_newer_file_of_the_same_bytes_has_another_name(weights: Path) -> None:
    before = place_of([weights])
    os.utime(weights, ns=(1, 1))
    assert place_of([weights]) != before


def test_every_file_and_fact_counts(weights: Path, tmp_path: Path) -> None:
    other = tmp_path / "more.safetensors"
    other.write_bytes(b"weights")
    names = {
        place_of([weights]),
        place_of([other]),
        place_of([weights, other]),
        place_of([weights], "llama"),
        place_of([weights], "llama", 2),
    }
    assert len(names) == 5


def test_another_version_of_torch_or_of_the_format_has_another_name(
    weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [place_of([weights])]
    monkeypatch.setattr(activation_cache, "FORMAT", "other")
    names.append(place_of([weights]))
    monkeypatch.setattr(torch, "__version__", "0.0")
    names.append(place_of([weights]))
    assert len(set(names)) == 3


@pytest.mark.parametrize("content", [b"", b"nothing", b"\x93NUMPY\x01\x00\x05"])
def test_a_damaged_file_is_heard_anew(weights: Path, content: bytes) -> None:
    place = place_of([weights])
    place.parent.mkdir(parents=True)
    place.write_bytes(content)
    assert recall(place, SHAPE) is None


def test_a_truncated_file_is_heard_anew(weights: Path) -> None:
    place = place_of([weights])
    remember(place, HEARD)
    place.write_bytes(place.read_bytes()[:-3])
    assert recall(place, SHAPE) is None


@pytest.mark.parametrize(
    "array", [np.zeros((3, 2), np.float32), np.zeros(SHAPE), np.array([None, 1], object)], ids=str
)
def test_another_shape_or_kind_is_not_taken(
    weights: Path, array: np.ndarray[tuple[int, ...], np.dtype[np.generic]]
) -> None:
    place = place_of([weights])
    place.parent.mkdir(parents=True)
    np.save(place, array, allow_pickle=True)
    assert recall(place, SHAPE) is None


def test_the_models_that_were_not_started_longest_go_first(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(activation_cache, "MOST", 3)
    places = [cache / "activation_stats" / f"{number}.npy" for number in range(4)]
    for age, place in enumerate(places[:3], 1):
        remember(place, HEARD)
        os.utime(place, ns=(age, age))
    recall(places[0], SHAPE)  # started again just now
    remember(places[3], HEARD)
    assert [place.exists() for place in places] == [True, False, True, True]


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    remember(blocked / "activation_stats" / "one.npy", HEARD)
    assert blocked.read_text() == ""

"""Where trained parts lie: names of folders, the own training before the shipped one."""

from pathlib import Path

import numpy as np
import pytest

from sapwood.common import drafter_store
from sapwood.common.fingerprint import EMBEDDING, Fingerprint, TensorSample
from sapwood.errors import SapwoodError
from tests.helpers.hidden_state_toy import random_part


def test_the_users_own_training_comes_before_what_is_shipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SAPWOOD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(drafter_store, "SHIPPED", tmp_path / "shipped")
    with pytest.raises(
        SapwoodError,
        match="no trained c2t for org/name; make one with `sapwood train c2t --model org",
    ):
        drafter_store.find("c2t", "org/name")
    shipped = tmp_path / "shipped" / "org%2Fname" / "c2t"
    random_part("c2t", shipped)
    assert drafter_store.find("c2t", "org/name") == shipped
    random_part("c2t", drafter_store.home("c2t", "org/name"))
    assert drafter_store.find("c2t", "org/name") == drafter_store.home("c2t", "org/name")
    assert drafter_store.home("c2t", "org/name").is_relative_to(tmp_path / "cache" / "drafters")


def test_folder_names_are_safe_and_differ() -> None:
    names = [
        "a/b",
        "a_b",
        "a%2Fb",
        "..",
        ".",
        "a" * 300,
        "a" * 301,
        "A b",
        "../../etc",
        "specdec++",
        "a\\b",
        "ä",
    ]
    folders = [drafter_store.safe(name) for name in names]
    assert len(set(folders)) == len(names)
    assert drafter_store.safe("smollm2") == "smollm2"
    for folder in folders:
        assert len(folder) < 200
        assert not folder.startswith(".")
        assert set(folder).isdisjoint("/\\ :*?")


def test_a_local_model_has_one_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "smollm2").mkdir()
    monkeypatch.chdir(tmp_path)
    assert (
        drafter_store.home("c2t", "mine")
        == drafter_store.home("c2t", "./mine")
        == drafter_store.home("c2t", str(tmp_path / "mine"))
    )
    assert drafter_store.home("c2t", "smollm2").parent.name == "smollm2"


# ------------------------------------------------------------------------------------ by weights
def fingerprint(seed: int) -> Fingerprint:
    noise = np.random.default_rng(seed)
    sample = TensorSample.of((96, 64), noise.standard_normal((8, 64)).astype(np.float32))
    return Fingerprint({EMBEDDING: sample})


@pytest.fixture
def trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A part that was trained for the weights of seed 0, under another name."""
    monkeypatch.setenv("SAPWOOD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(drafter_store, "SHIPPED", tmp_path / "shipped")
    folder = drafter_store.home("c2t", "first-name")
    random_part("c2t", folder)
    fingerprint(0).save(folder)
    return folder


def test_a_part_is_found_by_the_weights_under_any_name(trained: Path) -> None:
    assert drafter_store.find("c2t", "second-name", fingerprint(0)) == trained
    assert not drafter_store.has("c2t", "second-name", fingerprint(1))
    assert not drafter_store.has("c2t", "second-name")


def test_a_shipped_part_is_found_by_the_weights(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SAPWOOD_CACHE", str(tmp_path / "empty"))
    shipped = tmp_path / "shipped" / "built-in" / "c2t"
    random_part("c2t", shipped)
    fingerprint(0).save(shipped.parent)
    assert drafter_store.find("c2t", "any-file.gguf", fingerprint(0)) == shipped


def test_a_part_whose_target_has_changed_is_refused(trained: Path) -> None:
    with pytest.raises(SapwoodError, match="was trained for other weights than first-name holds"):
        drafter_store.find("c2t", "first-name", fingerprint(1))
    with pytest.raises(SapwoodError, match="delete its target"):
        drafter_store.choose(str(trained), "c2t", "anything", fingerprint(1))
    assert drafter_store.choose(str(trained), "c2t", "anything", fingerprint(0)) == trained


def test_training_for_changed_weights_keeps_the_earlier_part(trained: Path) -> None:
    assert drafter_store.home("c2t", "first-name", fingerprint(0)) == trained
    other = drafter_store.home("c2t", "first-name", fingerprint(1))
    assert other != trained
    random_part("c2t", other)
    fingerprint(1).save(other)
    assert drafter_store.find("c2t", "first-name", fingerprint(1)) == other


def test_a_part_without_a_fingerprint_goes_by_name(trained: Path) -> None:
    (trained / "target.json").unlink()
    assert drafter_store.find("c2t", "first-name", fingerprint(1)) == trained
    assert not drafter_store.has("c2t", "second-name", fingerprint(1))


def test_parts_can_be_hidden(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAPWOOD_NO_HEADS", "1")
    assert not drafter_store.has("c2t", "first-name", fingerprint(0))
    assert drafter_store.choose(str(trained), "c2t", "first-name") == trained
    monkeypatch.setenv("SAPWOOD_NO_HEADS", "0")
    assert drafter_store.has("c2t", "first-name", fingerprint(0))

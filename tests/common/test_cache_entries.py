"""The cache as `sapwood cache` lists and cleans it."""

import json
import os
import time
from pathlib import Path

import pytest

from sapwood.cli.main import main
from sapwood.common.cache_entries import entries, remove, spell_age, spell_size
from sapwood.errors import SapwoodError


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SAPWOOD_CACHE", str(tmp_path))
    for name, size in (
        ("models/mine-0123/model.safetensors", 5000),
        ("models/mine-0123/config.json", 10),
        ("drafters/a%2Fb/eagle3/model.safetensors", 300),
        ("profiles/mine.json", 20),
        ("later-versions/thing", 1),
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"x" * size)
    return tmp_path


def test_entries_tell_what_they_are(cache: Path) -> None:
    found = [(entry.name, entry.what, entry.size) for entry in entries()]
    assert found == [
        ("models/mine-0123", "weights converted from a GGUF file", 5010),
        ("drafters/a%2Fb/eagle3", "trained eagle3 for a/b", 300),
        ("profiles/mine.json", "measured cost of passes", 20),
        ("later-versions/thing", "unknown", 1),
    ]


def test_the_last_use_is_that_of_the_newest_file(cache: Path) -> None:
    old = time.time() - 10 * 86_400
    for path in (cache / "models" / "mine-0123").iterdir():
        os.utime(path, (old, old))
    os.utime(cache / "models" / "mine-0123" / "config.json", (old + 86_400, old))
    [entry] = [entry for entry in entries() if entry.name.startswith("models")]
    assert spell_age(entry.used) == "9 days ago"


def test_entries_are_removed_by_name(cache: Path) -> None:
    remove(["models/mine-0123", "profiles/mine.json"])
    assert [entry.name for entry in entries()] == ["drafters/a%2Fb/eagle3", "later-versions/thing"]


@pytest.mark.parametrize("name", ["models", "..", "models/../profiles/mine.json", "", "/etc"])
def test_only_entries_are_removed(cache: Path, name: str) -> None:
    with pytest.raises(SapwoodError, match="the cache has no entry"):
        remove(["profiles/mine.json", name])
    assert len(entries()) == 4


def test_a_missing_cache_is_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAPWOOD_CACHE", str(tmp_path / "none"))
    assert entries() == []


@pytest.mark.parametrize(
    ("size", "words"), [(0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (2.5e9, "2.5 GB")]
)
def test_sizes_in_words(size: float, words: str) -> None:
    assert spell_size(size) == words


def test_the_command_lists_and_removes(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cache"]) == 0
    out = capsys.readouterr().out
    assert "5.0 kB  models/mine-0123  (weights converted from a GGUF file, used today)" in out
    assert out.splitlines()[-1].endswith(f"5.3 kB  4 entries in {cache}")
    assert main(["cache", "--remove", "models/mine-0123", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [one["name"] for one in found["removed"]] == ["models/mine-0123"]
    assert not (cache / "models" / "mine-0123").exists()

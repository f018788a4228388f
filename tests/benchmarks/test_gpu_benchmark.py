"""The GPU benchmark runs from end to end; here on a CPU with a tiny model."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.byte_model import save_byte_model

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gpu.py"
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


def run(model: Path, tmp_path: Path, *more: str) -> tuple[str, dict[str, object]]:
    """What the script prints and writes."""
    file = tmp_path / "gpu.json"
    command = [
        sys.executable,
        str(SCRIPT),
        "--model",
        str(model),
        "--suite",
        "chat",
        "--json",
        str(file),
        *TINY,
        *more,
    ]
    known = {**os.environ, "SAPWOOD_CACHE": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=known, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout, json.loads(file.read_text())


def test_passes_and_decoding(model: Path, tmp_path: Path) -> None:
    said, found = run(model, tmp_path, "--parts", "a,b,c")
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


def test_a_limit_stops_it_cleanly(model: Path, tmp_path: Path) -> None:
    said, found = run(
        model, tmp_path, "--parts", "a,c", "--limit-seconds", "0.01", "--prompts", "4"
    )
    assert "1 of 4 prompts" in said
    assert "left out" in said
    assert "generate" not in found

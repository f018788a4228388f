"""The comparison of bits runs from end to end; on the int8 path of the CPU no row differs."""

import importlib
import json
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.helpers.byte_model import save_byte_model
from tests.helpers.run_script import run_script

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gpu_bits.py"


def test_it_compares_rows_of_all_kinds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_byte_model(tmp_path / "tiny")
    file = tmp_path / "bits.json"
    options = ["--model", str(tmp_path / "tiny"), "--device", "cpu"]
    options += ["--dtype", "int8", "--lengths", "3,20", "--nodes", "1,5,9", "--json", str(file)]
    code = run_script(SCRIPT, *options)
    counts = json.loads(file.read_text())["int8"]
    assert set(counts) == {"rows alone", "batches", "chunks"}
    assert counts["rows alone"]["rows"] >= 12
    assert counts["batches"]["rows"] == 2 * (1 + 5 + 9) - 9  # one pass of five trees
    assert counts["chunks"]["rows"] == 3 * (1 + 5)
    assert not any(count["differ"] for count in counts.values()), capsys.readouterr().out
    assert code == 0


def test_a_differing_row_is_counted_with_its_gap() -> None:
    sys.path.insert(0, str(SCRIPT.parent))
    count = importlib.import_module("gpu_bits").Count()
    count.add(np.array([1.0, 2.0]), np.array([1.0, 2.0]))
    count.add(np.array([1.0, 2.0]), np.array([1.0, 2.5]))
    assert (count.rows, count.differ, count.largest) == (2, 1, 0.5)

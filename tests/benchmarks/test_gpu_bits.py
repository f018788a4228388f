"""The comparison of bits runs from end to end; on the int8 path of the CPU no row differs."""

import importlib
import json
import subprocess
import sys
from pathlib import Path

import numpy as np

from tests.helpers.byte_model import save_byte_model

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gpu_bits.py"


def test_it_compares_rows_of_all_kinds(tmp_path: Path) -> None:
    save_byte_model(tmp_path / "tiny")
    file = tmp_path / "bits.json"
    command = [sys.executable, str(SCRIPT), "--model", str(tmp_path / "tiny"), "--device", "cpu"]
    command += ["--dtype", "int8", "--lengths", "3,20", "--nodes", "1,5,9", "--json", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    counts = json.loads(file.read_text())["int8"]
    assert set(counts) == {"rows alone", "batches", "chunks"}
    assert counts["rows alone"]["rows"] >= 12
    assert counts["batches"]["rows"] == 2 * (1 + 5 + 9) - 9  # one pass of five trees
    assert counts["chunks"]["rows"] == 3 * (1 + 5)
    assert not any(count["differ"] for count in counts.values()), done.stdout
    assert done.returncode == 0, done.stderr


def test_a_differing_row_is_counted_with_its_gap() -> None:
    sys.path.insert(0, str(SCRIPT.parent))
    count = importlib.import_module("gpu_bits").Count()
    count.add(np.array([1.0, 2.0]), np.array([1.0, 2.0]))
    count.add(np.array([1.0, 2.0]), np.array([1.0, 2.5]))
    assert (count.rows, count.differ, count.largest) == (2, 1, 0.5)

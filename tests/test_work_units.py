"""Processes that share the tests get whole files, and files that belong together in one piece."""

import subprocess
import sys
from collections import defaultdict
from pathlib import Path

from tests.helpers.source_tree import ROOT
from tests.helpers.work_units import APART, INT8, TOGETHER, work_unit

CONFTEST = """
from tests.conftest import pytest_xdist_make_scheduler
"""
FILE = """
import pytest

@pytest.mark.parametrize("number", range(6))
def test_some(number):
    pass
"""


def test_a_file_is_one_piece_unless_its_name_is_listed() -> None:
    assert work_unit("tests/test_llm.py::test_a[x::y]") == "tests/test_llm.py"
    assert work_unit("tests/test_smol.py::test_a") == INT8
    assert work_unit("tests/backends/torch/cpu_int8/test_int8_gemm.py::test_a") == INT8
    assert work_unit("tests/train/test_generate.py::test_smollm2_says") == INT8
    assert work_unit("tests/train/test_generate.py::test_a") == "tests/train/test_generate.py"
    alone = f"{APART[0]}::test_a[8.0]"
    assert work_unit(alone) == alone


def test_listed_places_exist() -> None:
    for place in (*TOGETHER, *APART):
        path, _, name = place.partition("::")
        assert (ROOT / path).exists(), place
        assert not name or f"def {name}" in (ROOT / path).read_text(), place


def test_a_run_keeps_the_tests_of_a_file_in_one_process(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    for name in ("test_a.py", "test_b.py", "test_c.py"):
        (tmp_path / name).write_text(FILE)
    command = [sys.executable, "-m", "pytest", "-v", "-n", "2", "--dist", "loadfile"]
    done = subprocess.run(
        [*command, "-p", "no:cacheprovider", "--rootdir", str(tmp_path), str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert "WorkUnitScheduling" in done.stdout
    processes = defaultdict(set)
    for line in done.stdout.splitlines():
        if "PASSED" in line:
            processes[line.split()[-1].partition("::")[0]].add(line.split()[0])
    assert len(processes) == 3
    assert all(len(found) == 1 for found in processes.values())

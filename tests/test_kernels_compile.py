"""The fused kernels compile for a GPU, on machines that have none."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[1] / "tools" / "kernels.py"


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
def test_kernels_compile_without_a_gpu(tmp_path: Path) -> None:
    known = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    paths = os.pathsep.join(sys.path)
    done = subprocess.run(
        [sys.executable, str(TOOL)],
        env={**known, "PYTHONPATH": paths, "TRITON_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert {line.split()[0] for line in lines} >= {"_enter", "_qkv", "_attend", "_project", "_peaks", "_peak"}
    assert all(line.endswith(" stack 0") for line in lines), done.stdout  # no registers on the stack

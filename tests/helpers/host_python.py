"""Interpreters of environments that hold another engine."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


def host_python(package: str) -> str:
    """The interpreter that $SAPWOOD_<PACKAGE>_PYTHON names, or ours if it has the package."""
    variable = f"SAPWOOD_{package.upper()}_PYTHON"
    found = os.environ.get(variable)
    if found:
        return found
    if importlib.util.find_spec(package) is None:
        pytest.skip(
            f"{package} is not installed: pip install 'sapwood[{package}]', or name the "
            f"interpreter of an environment that has it in {variable}"
        )
    return sys.executable


def run_in(python: str, *arguments: str, **environment: str) -> Any:
    """The JSON object in the last line that a module prints in another interpreter."""
    paths = os.pathsep.join((str(ROOT / "src"), str(ROOT)))
    done = subprocess.run(
        [python, *arguments],
        env={**os.environ, "PYTHONPATH": paths, **environment},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return json.loads(done.stdout.splitlines()[-1])

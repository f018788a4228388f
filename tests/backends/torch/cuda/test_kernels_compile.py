"""Every Triton kernel compiles and fits the cards people have, on machines that have none."""

import ast
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

import sapwood.backends.torch.cuda

ROOT = Path(__file__).parents[4]
TOOL = ROOT / "tools" / "kernels.py"
SOURCES = Path(sapwood.backends.torch.cuda.__file__).parent
OTHERS = ("gemma", "olmoe")  # whose passes have kernels of their own
# rows of a pass, models and part: compiling takes half a second a kernel, so each card has some of
# them. Every kernel is compiled for every card; its variants are dealt to the cards that run models
# of about the same kernels.
CASES = {
    "8.0": ["--rows", "128", "--part", "0", "2", "--models", "135m", *OTHERS],
    "8.6": ["--rows", "16", "--part", "0", "4", "--models", "8b", *OTHERS],
    "8.9": ["--rows", "64", "--part", "1", "4", "--models", "8b-norms", *OTHERS],
    "9.0": ["--rows", "16", "--part", "2", "4", "--models", "8b", *OTHERS],
    "10.0": ["--rows", "64", "--part", "3", "4", "--models", "8b-norms", *OTHERS],
    "12.0": ["--rows", "128", "--part", "1", "2", "--models", "135m", *OTHERS],
}
# each launch is made by one model only: rows that are normed before they are read
OF_WIDE_MODELS = {"pointwise._prepare"}
UNKNOWN = "is not defined for option 'gpu-name'"  # says an assembler about a newer capability


def kernels() -> set[str]:
    """Module and name of every function that is launched: the jitted ones with an underscore."""
    found = set()
    for path in SOURCES.rglob("*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("_"):
                marks = [ast.unparse(mark) for mark in node.decorator_list]
                if any(mark.startswith("triton.jit") for mark in marks):
                    found.add(f"{path.stem}.{node.name}")
    return found


def compile_for(capability: str, cache: Path) -> str:
    """Compile for one capability; what is wrong, if anything."""
    known = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, str(TOOL), "--capability", capability, *CASES[capability]],
        env={**known, "PYTHONPATH": os.pathsep.join(sys.path), "TRITON_CACHE_DIR": str(cache)},
        capture_output=True,
        text=True,
        timeout=900,
    )
    if UNKNOWN in done.stdout + done.stderr:
        return f"the assembler of this triton does not know capability {capability}"
    if done.returncode:
        return f"{capability}: {done.stdout[-4000:]}{done.stderr[-2000:]}"
    wanted = kernels() - (OF_WIDE_MODELS if "135m" in CASES[capability] else set())
    missing = wanted - {line.split()[0] for line in done.stdout.splitlines()}
    return f"{capability}: not compiled: {sorted(missing)}" if missing else ""


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="triton is missing: pip install triton"
)
@pytest.mark.parametrize("capability", CASES)
def test_every_kernel_compiles_and_fits_every_card(capability: str, tmp_path: Path) -> None:
    found = compile_for(capability, tmp_path)
    if found.startswith("the assembler"):
        pytest.skip(found)
    assert not found


def test_the_kernels_are_found_in_the_source() -> None:
    assert {"draft_kernels._attend", "attention._attend", "kv_move._keep"} <= kernels()

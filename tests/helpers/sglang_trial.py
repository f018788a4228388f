"""Plain decoding and the plug-in in an installed SGLang on a CPU, with stand-ins for its kernels.

JSON by `python -m`. The model is a Llama of two layers with random weights. Scheduler, worker,
verification, memory and the plug-in are those of a GPU; attention and tree walks are those of
`sglang_cpu_kernels`, so nothing here tells how SGLang's kernels behave.
"""

import json
import os
import runpy
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.helpers.vllm_trial import tiny_model

NODES = 8
# drafts whatever a lookup finds, right or wrong, so that texts are tried most
RECIPE = f"suffix + best + match + fixed(nodes={NODES - 1}, depth=4, width=3)"
# SGLang imports these for models that see and listen; their wheels for CUDA do not load beside a
# torch for CPUs
ABSENT = """
import importlib.abc, importlib.machinery, sys, types

NAMES = ("torchvision", "torchaudio")

class Absent(types.ModuleType):
    __path__ = []
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Absent(f"{self.__name__}.{name}")
    def __mro_entries__(self, bases):
        return (object,)

class AbsentFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in NAMES:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
    def create_module(self, spec):
        return Absent(spec.name)
    def exec_module(self, module):
        pass

sys.meta_path.insert(0, AbsentFinder())
"""
TOKENS = 40
PROMPTS = 12


def prompts() -> list[list[int]]:
    """Prompts of tokens; half of them repeat a phrase."""
    phrase = [5, 9, 77, 31, 8, 120]
    return [
        [1 + number, *(phrase * 4 if number % 2 else range(40, 60 - number % 5))]
        for number in range(PROMPTS)
    ]


def decode(model: str, speculation: dict[str, Any]) -> dict[str, Any]:
    """Texts of all prompts, and the steps that they took."""
    import sglang

    engine = sglang.Engine(
        model_path=model,
        device="cpu",
        dtype="float32",
        attention_backend="intel_amx",
        sampling_backend="pytorch",
        grammar_backend="none",
        skip_tokenizer_init=True,
        max_total_tokens=2048,
        max_running_requests=4,
        context_length=256,
        disable_overlap_schedule=True,
        disable_radix_cache=True,
        disable_cuda_graph=True,
        log_level="warning",
        **speculation,
    )
    sampling = {"temperature": 0, "max_new_tokens": TOKENS, "ignore_eos": True}
    made = engine.generate(input_ids=prompts(), sampling_params=sampling)
    engine.shutdown()
    return {
        "texts": [one["output_ids"] for one in made],
        "passes": sum(one["meta_info"].get("spec_verify_ct", TOKENS) for one in made),
    }


def install(folder: Path) -> None:
    """Put the stand-ins and the plug-in's entry point on the path, for all processes."""
    kernels = folder / "sgl_kernel"
    kernels.mkdir(parents=True)
    shutil.copy(Path(__file__).with_name("sglang_cpu_kernels.py"), kernels / "__init__.py")
    (folder / "sitecustomize.py").write_text(ABSENT)
    for name in ("torchvision", "torchaudio"):
        describe(folder, name)
    (describe(folder, "sapwood_trial") / "entry_points.txt").write_text(
        "[sglang.srt.plugins]\nsapwood = sapwood.guest.sglang:register\n"
    )
    sys.path.insert(0, str(folder))
    runpy.run_path(str(folder / "sitecustomize.py"))  # this process began without it
    os.environ["PYTHONPATH"] = os.pathsep.join((str(folder), os.environ.get("PYTHONPATH", "")))


def describe(folder: Path, name: str) -> Path:
    """The folder that says that a package is installed."""
    place = folder / f"{name}-0.20.dist-info"
    place.mkdir()
    (place / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.20\n")
    return place


def main() -> None:
    """Run plain decoding and the plug-in one after the other, and print what came out."""
    os.environ["SGLANG_USE_CPU_ENGINE"] = "1"
    algorithm = {"speculative_algorithm": "SAPWOOD", "speculative_num_draft_tokens": NODES}
    with tempfile.TemporaryDirectory() as folder:
        os.environ["SAPWOOD_CACHE"] = folder
        os.environ["SAPWOOD_GUEST_RECIPE"] = RECIPE
        install(Path(folder) / "plugins")
        model = tiny_model(folder + "/model")
        found: dict[str, Any] = {"plain": decode(model, {})}
        log = Path(folder) / "steps.jsonl"
        os.environ["SAPWOOD_GUEST_LOG"] = str(log)
        found["sapwood"] = decode(model, algorithm)
        found["drafted"] = [json.loads(line)["drafted"] for line in log.read_text().splitlines()]
    sys.stdout.write("\n" + json.dumps(found) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()

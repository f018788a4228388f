"""Runs commands and statements as a base install would: optional packages and package metadata are hidden.

A program: a JSON list of lists of arguments on standard input, a JSON list of results on standard
output. An entry that begins with `python` holds statements in place of arguments.
"""

import contextlib
import importlib.metadata
import io
import json
import sys
import traceback
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Never

HIDDEN = {
    "accelerate",
    "gguf",
    "h11",
    "huggingface_hub",
    "jinja2",
    "llama_cpp",
    "llguidance",
    "llvmlite",
    "matplotlib",
    "msgspec",
    "numba",
    "opentelemetry",
    "prometheus_client",
    "ray",
    "safetensors",
    "scipy",
    "sglang",
    "starlette",
    "tokenizers",
    "torch",
    "transformers",
    "triton",
    "uvicorn",
    "vllm",
}


class HiddenPackages(MetaPathFinder):
    """Finds none of the hidden packages."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Refuse as Python does where a package is not installed."""
        if name.partition(".")[0] in HIDDEN:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return None


def no_metadata(name: str) -> Never:
    """Stands in for the metadata of every installed package."""
    raise importlib.metadata.PackageNotFoundError(name)


def run(arguments: list[str]) -> dict[str, Any]:
    """Exit code and output of one command."""
    from sapwood.cli.main import main

    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            if arguments[:1] == ["python"]:
                exec("\n".join(arguments[1:]), {})
                code = 0
            else:
                code = main(arguments)
        except BaseException:
            traceback.print_exc()
            code = 1
    return {"code": code, "out": out.getvalue(), "err": err.getvalue()}


if __name__ == "__main__":
    sys.meta_path.insert(0, HiddenPackages())
    importlib.metadata.Distribution.from_name = no_metadata  # type: ignore[method-assign]
    sys.stdout.write(json.dumps([run(arguments) for arguments in json.load(sys.stdin)]))

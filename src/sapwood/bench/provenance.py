"""Provenance of numbers: machine, model, code, command."""

import hashlib
import os
import platform
import shlex
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from sapwood import __version__
from sapwood.core.types import BackendInfo
from sapwood.errors import SapwoodError

PACKAGE = Path(__file__).resolve().parents[1]
EDGE = 1 << 20  # bytes hashed at each end of a file
# environment variable: the commit of a copy of the sources without its repository
COMMIT = "SAPWOOD_COMMIT"


def machine(info: BackendInfo, load: float | None) -> dict[str, Any]:
    """The computer, the software that ran the model, and the load before the run."""
    found = {
        "cpu": cpu(),
        "cores": os.cpu_count(),
        "threads": info.threads,
        "load": load,
        "sapwood": __version__,
        "torch": version("torch"),
        "platform": platform.platform(),
        "python": platform.python_version(),
    }
    if info.device.startswith("cuda"):
        found["gpu"] = ask("nvidia-smi", "--query-gpu=name", "--format=csv,noheader")
    return found


def model(info: BackendInfo) -> dict[str, Any]:
    """The target model."""
    return {
        "name": info.model,
        "dtype": info.dtype,
        "device": info.device,
        "backend": info.name,
        "vocab": info.vocab,
    }


def fingerprint(name: str) -> str | None:
    """A hash of a model's weight files (name, size, both ends); None if they are not on disk."""
    from sapwood.backends.torch.resolve_model import BUILT_IN, built_in_file

    try:
        path = built_in_file() if name == BUILT_IN else Path(name).expanduser()
        files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
        made = hashlib.sha256()
        for file in files:
            made.update(f"{file.name} {file.stat().st_size} ".encode())
            with file.open("rb") as content:
                made.update(content.read(EDGE))
                content.seek(max(file.stat().st_size - EDGE, 0))
                made.update(content.read(EDGE))
    except (OSError, SapwoodError):
        return None
    return made.hexdigest()[:16] if files else None


def origin(info: BackendInfo, load: float | None) -> dict[str, Any]:
    """Command, commit, machine and model of a run."""
    return {
        "command": command(),
        "commit": commit(),
        "machine": machine(info, load),
        "model": {**model(info), "fingerprint": fingerprint(info.model)},
    }


def load() -> float | None:
    """Load average of the last minute; None if the system has none."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None


def cpu() -> str:
    """The processor's name."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor() or platform.machine()


def version(package: str) -> str | None:
    """The installed version, without importing the package."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def command() -> str:
    """The command line as it was typed: of `sapwood`, or of a script under benchmarks."""
    program = Path(sys.argv[0])
    is_script = program.resolve().parent.name == "benchmarks"
    words = ["python", f"benchmarks/{program.name}"] if is_script else ["sapwood"]
    return shlex.join([*words, *sys.argv[1:]])


def commit() -> str | None:
    """The commit of the running code, "-dirty" if files differ.

    Outside its own checkout it is what the environment says, or None.
    """
    if not ask("git", "-C", str(PACKAGE), "ls-files", "__init__.py"):
        return os.environ.get(COMMIT) or None
    return ask(
        "git", "-C", str(PACKAGE), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"
    )


def ask(*words: str) -> str | None:
    """Output of a program; None if it is missing or fails."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None

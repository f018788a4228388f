"""Where numbers come from: machine, model, code, command."""

import hashlib
import os
import platform
import shlex
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from sapwood.errors import SapwoodError
from sapwood.records import BackendInfo

PACKAGE = Path(__file__).resolve().parents[1]
EDGE = 1 << 20  # bytes at each end of a file that are hashed


def machine(info: BackendInfo, load: float | None) -> dict[str, Any]:
    """The computer, what ran the model on it, and how busy it was before."""
    found = {
        "cpu": cpu(),
        "cores": os.cpu_count(),
        "threads": info.threads,
        "load": load,
        "sapwood": version("sapwood"),
        "torch": version("torch"),
        "platform": platform.platform(),
        "python": platform.python_version(),
    }
    if info.device.startswith("cuda"):
        found["gpu"] = ask("nvidia-smi", "--query-gpu=name", "--format=csv,noheader")
    return found


def model(info: BackendInfo) -> dict[str, Any]:
    """The target."""
    return {"name": info.model, "dtype": info.dtype, "device": info.device, "backend": info.name, "vocab": info.vocab}


def fingerprint(name: str) -> str | None:
    """A hash of a model's weight files: their names, sizes, beginnings and ends; None where they are not on disk."""
    from sapwood.backends.torch.find import BUILT_IN, built_in_file

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
    """Everything that says where a run was made."""
    return {
        "command": command(),
        "commit": commit(),
        "machine": machine(info, load),
        "model": {**model(info), "fingerprint": fingerprint(info.model)},
    }


def load() -> float | None:
    """How many programs want to run at present, averaged over a minute; None where the system does not say."""
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
    """The command line as it was typed."""
    return shlex.join(["sapwood", *sys.argv[1:]])


def commit() -> str | None:
    """The commit of the code that runs, if it is a git checkout; "-dirty" where files differ from it."""
    if not ask("git", "-C", str(PACKAGE), "ls-files", "__init__.py"):  # another project's checkout around us
        return None
    return ask("git", "-C", str(PACKAGE), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*")


def ask(*words: str) -> str | None:
    """What a program answers; None where it is not there or fails."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None

"""The cache folder of sapwood, and atomic writes to it."""

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO


def cache_folder() -> Path:
    """$SAPWOOD_CACHE, or ~/.cache/sapwood."""
    return Path(os.environ.get("SAPWOOD_CACHE") or Path.home() / ".cache" / "sapwood")


def write_cached(path: Path, content: bytes) -> bool:
    """Write a file atomically; False when it cannot be written, since a cache can be remade."""
    return write_cached_by(path, lambda file: file.write(content))


def write_cached_by(path: Path, write: Callable[[BinaryIO], object]) -> bool:
    """`write_cached` for content that a function writes into the open file."""
    draft = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with draft.open("wb") as file:
            write(file)
        draft.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
        return False
    return True

"""The cache folder of sapwood, and atomic writes to it."""

import contextlib
import os
from pathlib import Path


def cache_folder() -> Path:
    """$SAPWOOD_CACHE, or ~/.cache/sapwood."""
    return Path(os.environ.get("SAPWOOD_CACHE") or Path.home() / ".cache" / "sapwood")


def write_cached(path: Path, content: bytes) -> bool:
    """Write a file atomically; False when it cannot be written, since a cache can be remade."""
    draft = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft.write_bytes(content)
        draft.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
        return False
    return True

"""Where sapwood keeps what it would rather not make twice."""

import os
from pathlib import Path


def cache_folder() -> Path:
    """$SAPWOOD_CACHE, or ~/.cache/sapwood."""
    return Path(os.environ.get("SAPWOOD_CACHE") or Path.home() / ".cache" / "sapwood")


def keep(path: Path, content: bytes) -> bool:
    """Write a file, whole or not at all; False where that cannot be, which costs making its content once more."""
    draft = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft.write_bytes(content)
        draft.replace(path)
    except OSError:
        return False
    return True

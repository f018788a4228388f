"""Where sapwood keeps what it would rather not make twice."""

import os
from pathlib import Path


def cache_folder() -> Path:
    """$SAPWOOD_CACHE, or ~/.cache/sapwood."""
    return Path(os.environ.get("SAPWOOD_CACHE") or Path.home() / ".cache" / "sapwood")

"""Disk cache of activation statistics, which take a pass over the whole model to compute."""

import contextlib
import hashlib
import io
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from sapwood.backends.torch.gguf import fingerprint
from sapwood.common.cache_dir import cache_folder, write_cached

FORMAT = "1"  # of the statistics; a new number invalidates the cache
MOST = 64  # cached models; the least recently used are deleted


def place_of(files: Sequence[Path], *facts: object) -> Path:
    """Cache file of a model: a hash of its weights' paths, times, sizes and byte samples."""
    digest = hashlib.sha256(repr((FORMAT, torch.__version__, *facts)).encode())
    for file in files:
        age = file.stat().st_mtime_ns
        digest.update(repr((str(file.resolve()), age, fingerprint(file))).encode())
    return cache_folder() / "activation_stats" / f"{digest.hexdigest()[:24]}.npy"


def recall(place: Path, shape: tuple[int, int]) -> Tensor | None:
    """The cached statistics, float32 of this shape; None if missing or damaged."""
    try:
        with place.open("rb") as file:
            found = np.load(file, allow_pickle=False)
        os.utime(place)
    except (OSError, ValueError, EOFError):
        return None
    return torch.from_numpy(found) if found.shape == shape and found.dtype == np.float32 else None


def remember(place: Path, measured: Tensor) -> None:
    """Save statistics for the next run, and delete the oldest files beyond the limit."""
    content = io.BytesIO()
    np.save(content, measured.numpy())
    if write_cached(place, content.getvalue()):
        with contextlib.suppress(OSError):  # others may be at it too
            known = sorted(place.parent.glob("*.npy"), key=lambda path: path.stat().st_mtime_ns)
            for path in known[:-MOST]:
                path.unlink()

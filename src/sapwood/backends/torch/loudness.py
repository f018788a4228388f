"""What was heard of a model, kept between runs: a few numbers that take a pass over the whole model to make."""

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
from sapwood.paths import cache_folder, keep

FORMAT = "1"  # of what is heard and how; a new one is heard anew
MOST = 64  # models that are remembered; those that were not started for longest go first


def place_of(files: Sequence[Path], *facts: object) -> Path:
    """The file for a model with these weights: a name from their place, age, size and samples of their bytes."""
    digest = hashlib.sha256(repr((FORMAT, torch.__version__, *facts)).encode())
    for file in files:
        age = file.stat().st_mtime_ns
        digest.update(repr((str(file.resolve()), age, fingerprint(file))).encode())
    return cache_folder() / "loudness" / f"{digest.hexdigest()[:24]}.npy"


def recall(place: Path, shape: tuple[int, int]) -> Tensor | None:
    """What was kept there, float32 of this shape; None where there is nothing of the kind."""
    try:
        with place.open("rb") as file:
            found = np.load(file, allow_pickle=False)
        os.utime(place)
    except (OSError, ValueError, EOFError):
        return None
    return torch.from_numpy(found) if found.shape == shape and found.dtype == np.float32 else None


def remember(place: Path, heard: Tensor) -> None:
    """Keep it for the next run, and let others go where there are too many."""
    content = io.BytesIO()
    np.save(content, heard.numpy())
    if keep(place, content.getvalue()):
        with contextlib.suppress(OSError):  # others may be at it too
            known = sorted(place.parent.glob("*.npy"), key=lambda path: path.stat().st_mtime_ns)
            for path in known[:-MOST]:
                path.unlink()

"""Drops compiled kernels that were made from other sources than those that are here.

numba compares a cached function with the file that defines it. A pass holds kernels of many files,
so a change in one of them would leave its old code in the pass.
"""

import hashlib
from contextlib import suppress
from functools import cache
from pathlib import Path

STAMP = "kernels.sha256"
COMPILED = ("*.nbi", "*.nbc")


@cache
def digest_of(sources: Path) -> str:
    """A digest of all source files of a folder."""
    found = hashlib.sha256()
    for file in sorted(sources.glob("*.py")):
        found.update(file.name.encode() + b"\0" + file.read_bytes())
    return found.hexdigest()


@cache
def drop_stale(folder: Path, sources: Path = Path(__file__).parent) -> None:
    """Empty a folder of compiled functions if the sources have changed since they were made."""
    stamp = folder / STAMP
    digest = digest_of(sources)
    with suppress(OSError):  # a folder that cannot be written holds no compiled functions
        if stamp.exists() and stamp.read_text() == digest:
            return
        for pattern in COMPILED:
            for file in folder.glob(pattern):
                file.unlink(missing_ok=True)
        folder.mkdir(parents=True, exist_ok=True)
        stamp.write_text(digest)

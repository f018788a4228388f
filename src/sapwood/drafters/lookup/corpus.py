"""The suffix array of a text file that the user names: built once and kept on disk.

The name of the cached file is a hash of the text, the model and the tokens of the text's beginning.
It is written under another name and then renamed, and read through memory mapping, so that engines
and processes share its pages. If it cannot be written, the array is kept in memory.
"""

import contextlib
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from sapwood.common.cache_dir import cache_folder
from sapwood.core.array_types import IntArray
from sapwood.core.protocols import EngineContext
from sapwood.drafters.lookup.suffix_array import DEPTH, SuffixArray
from sapwood.errors import SapwoodError

# bytes of a text; sorting takes about 80 bytes of memory for each of its tokens
LARGEST = 32 * 2**20
PIECE = 2**20  # characters that are read and tokenized at once
PROBE = 4096  # bytes of the text by which tokenizers are told apart


def open_corpus(name: str, setting: EngineContext, *, most: int | None = None) -> SuffixArray:
    """The suffix array of a text file, of at most `most` tokens, from the cache if possible."""
    path = Path(name).expanduser()
    place = cached(path, setting)
    found = stored(place)
    if found is None:
        found = build(path, setting)
        with contextlib.suppress(OSError):
            keep(found, place)
            found = stored(place) or found
    if most is not None and len(found.tokens) > most:
        raise SapwoodError(
            f"corpus {name!r} has {len(found.tokens)} tokens and at most {most} fit here; "
            "use rest, or a smaller corpus"
        )
    return found


def cached(path: Path, setting: EngineContext) -> Path:
    """File of the suffix array of this text and tokenizer."""
    check(path)
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            probe = file.read(PROBE)
            digest.update(probe)
            while piece := file.read(PIECE):
                digest.update(piece)
    except OSError as error:
        raise SapwoodError(
            f"corpus {str(path)!r} cannot be read ({error.strerror}); name a text file"
        ) from error
    reading = setting.encode(probe.decode("utf-8", "ignore"))
    digest.update(
        f"{setting.target.info.model} {setting.target.info.vocab} {DEPTH} {reading}".encode()
    )
    return cache_folder() / "corpora" / f"{digest.hexdigest()[:32]}.npy"


def check(path: Path) -> None:
    """Refuse what is no file, empty, or larger than can be sorted in memory."""
    if not path.is_file():
        raise SapwoodError(f"corpus {str(path)!r} is not a file; name a file of plain text")
    size = path.stat().st_size
    if not size:
        raise SapwoodError(f"corpus {str(path)!r} is empty; name a file that holds text")
    if size > LARGEST:
        raise SapwoodError(
            f"corpus {str(path)!r} has {size} bytes and at most {LARGEST} can be sorted; "
            "name a smaller file"
        )


def stored(place: Path) -> SuffixArray | None:
    """The stored suffix array, mapped from disk; None if it is missing or damaged."""
    try:
        both = np.load(place, mmap_mode="r")  # [2, n]: tokens, order
    except (OSError, ValueError, EOFError):
        return None
    return (
        SuffixArray(both[0], both[1])
        if both.ndim == 2 and len(both) == 2 and both.dtype == np.int32
        else None
    )


def build(path: Path, setting: EngineContext) -> SuffixArray:
    """Read and sort a text."""
    tokens = np.concatenate([np.array(setting.encode(piece), np.int32) for piece in pieces(path)])
    if not len(tokens):
        raise SapwoodError(f"corpus {str(path)!r} holds no tokens; name a file that holds text")
    if int(tokens.max()) >= setting.target.info.vocab:
        raise SapwoodError(
            f"corpus {str(path)!r} reads as token {int(tokens.max())} "
            f"and {setting.target.info.model} "
            f"has {setting.target.info.vocab}; use the target's own tokenizer"
        )
    return SuffixArray.of(tokens)


def pieces(path: Path) -> Iterator[str]:
    """The text in pieces that end with a line, where lines are not longer than a piece."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            while piece := file.read(PIECE):
                yield piece + (file.readline(PIECE) if not piece.endswith("\n") else "")
    except UnicodeDecodeError as error:
        raise SapwoodError(
            f"corpus {str(path)!r} is not UTF-8 at byte {error.start}; save it as UTF-8 text"
        ) from error


def keep(made: SuffixArray, place: Path) -> None:
    """Write the file atomically."""
    place.parent.mkdir(parents=True, exist_ok=True)
    beside = place.with_suffix(f".{os.getpid()}.part")
    try:
        with beside.open("wb") as file:
            np.save(file, pair(made))
        os.replace(beside, place)
    finally:
        beside.unlink(missing_ok=True)


def pair(made: SuffixArray) -> IntArray:
    """Tokens and order as the file holds them, [2, n]."""
    both: IntArray = np.stack([made.tokens, made.order]).astype(np.int32)
    return both

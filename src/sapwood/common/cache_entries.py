"""Entries of the cache folder: what each is, its size and its last use; and their removal."""

import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from sapwood.common.cache_dir import cache_folder
from sapwood.errors import SapwoodError

# folder of the cache -> what its entries are, and how many folders deep they lie
KINDS = {
    "adapters": ("weights merged with an adapter", 1),
    "models": ("weights converted from a GGUF file", 1),
    "drafters": ("trained part", 2),
    "corpora": ("texts for training", 1),
    "rounds": ("recorded rounds for training", 1),
    "profiles": ("measured cost of passes", 1),
    "activation_stats": ("activation statistics", 1),
    "trees": ("acceptance by rank", 1),
    "plans": ("tuned GPU kernels", 1),
    "bench": ("runs of a benchmark", 1),
    "chat": ("lines typed in chats", 1),
}
OTHER = "unknown"
UNITS = ("B", "kB", "MB", "GB", "TB")


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """A file or folder of the cache that can be removed by itself."""

    name: str  # path within the cache
    what: str
    size: int  # bytes
    used: float  # seconds since the epoch, when it was last read or written
    path: Path


def entries() -> list[CacheEntry]:
    """All entries, the largest first."""
    found = [describe(path) for path in places(cache_folder())]
    return sorted(found, key=lambda entry: (-entry.size, entry.name))


def places(root: Path) -> Iterator[Path]:
    """Paths of all entries."""
    for folder in sorted(root.iterdir()) if root.is_dir() else ():
        if not folder.is_dir():
            yield folder
            continue
        level = [folder]
        for _ in range(KINDS.get(folder.name, (OTHER, 1))[1]):
            level = [inner for path in level if path.is_dir() for inner in sorted(path.iterdir())]
        yield from level


def describe(path: Path) -> CacheEntry:
    """The entry at this path."""
    name = path.relative_to(cache_folder())
    what = KINDS.get(name.parts[0], (OTHER, 1))[0]
    if name.parts[0] == "drafters":
        what = f"trained {unquote(name.parts[-1])} for {unquote(name.parts[1])}"
    facts = [file.stat() for file in (path, *path.rglob("*")) if file.exists()]
    size = sum(fact.st_size for fact in facts[1:] or facts)
    used = max((max(fact.st_atime, fact.st_mtime) for fact in facts[1:] or facts), default=0.0)
    return CacheEntry(str(name), what, size, used, path)


def remove(names: list[str]) -> list[CacheEntry]:
    """Remove the entries of these names, or of none if one is not known."""
    known = {entry.name: entry for entry in entries()}
    for name in names:
        if name not in known:
            raise SapwoodError(
                f"the cache has no entry {name!r}; `sapwood cache` lists all of them"
            )
    for name in names:
        path = known[name].path
        try:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        except OSError as error:
            raise SapwoodError(
                f"{path} cannot be removed ({error}); check its permissions"
            ) from error
    return [known[name] for name in names]


def spell_size(size: float) -> str:
    """A size in bytes, in words."""
    for unit in UNITS[:-1]:
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} {UNITS[-1]}"


def spell_age(used: float) -> str:
    """A time in the past, in words."""
    days = (time.time() - used) / 86_400
    if days < 1:
        return "today"
    return "yesterday" if days < 2 else f"{days:.0f} days ago"

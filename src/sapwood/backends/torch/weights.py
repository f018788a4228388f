"""The tensors of a folder by name, read a few at a time.

Files are mapped, not read whole, and only for as long as what was asked for is in use: pages of a mapped
file count as memory of the process once they are touched. A tensor of which few rows are ever read stays mapped.
"""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from safetensors import SafetensorError, safe_open
from torch import Tensor

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
ADAPTER = "adapter_config.json"  # transformers would add what lies beside it to the weights
FLOATS = ("F32", "F16", "BF16")


@dataclass(frozen=True, slots=True)
class Entry:
    """Where a tensor is, and what it looks like."""

    file: Path
    shape: tuple[int, ...]
    kind: str  # of its numbers, as the file says it


class Weights:
    """The tensors of a folder, in one file or in several with an index."""

    def __init__(self, entries: Mapping[str, Entry]) -> None:
        self.entries = entries

    @property
    def files(self) -> list[Path]:
        """Where the tensors lie, each file once."""
        return sorted({entry.file for entry in self.entries.values()})

    @property
    def size(self) -> int:
        """Numbers in all of them."""
        return sum(math.prod(entry.shape) for entry in self.entries.values())

    def fit(self, shapes: Mapping[str, tuple[int, ...]]) -> bool:
        """True where all of these are there, in this shape, as plain numbers."""
        found = [(self.entries.get(name), shape) for name, shape in shapes.items()]
        return all(entry is not None and entry.shape == shape and entry.kind in FLOATS for entry, shape in found)

    def read(self, names: Iterable[str]) -> dict[str, Tensor]:
        """These tensors in float32; those that are float32 in the file are views of it."""
        found: dict[str, Tensor] = {}
        for file, group in groupby(sorted(names, key=self._file), self._file):
            with safe_open(file, "pt") as opened:
                found |= {name: opened.get_tensor(name).data.float() for name in group}  # the file's own is a view
        return found

    def copy(self, name: str) -> Tensor:
        """One tensor in float32, in memory of its own."""
        return self.read([name])[name].clone()

    def view(self, name: str) -> Tensor:
        """One tensor in the file's own numbers; what is not looked at takes no memory."""
        with safe_open(self._file(name), "pt") as opened:
            found: Tensor = opened.get_tensor(name).data
        return found

    def strips(self, name: str) -> "Strips":
        """One matrix, to be read some rows at a time."""
        return Strips(name, self.entries[name])

    def _file(self, name: str) -> Path:
        return self.entries[name].file


class Strips:
    """A matrix in a file that is mapped anew for every few rows, so that no more than those are in memory."""

    def __init__(self, name: str, entry: Entry) -> None:
        self.name, self.file, self.shape = name, entry.file, entry.shape

    def __getitem__(self, rows: slice, /) -> Tensor:
        """Some of the rows, in the file's own numbers."""
        with safe_open(self.file, "pt") as opened:
            found: Tensor = opened.get_slice(self.name)[rows].data
        return found


def find_weights(folder: Path) -> Weights | None:
    """The weights in a folder as transformers would choose them; None where they cannot be read so."""
    if (folder / ADAPTER).exists():
        return None
    try:
        whole = (folder / WEIGHTS).is_file()
        names = None if whole else json.loads((folder / INDEX).read_text(encoding="utf-8"))["weight_map"]
        files = {WEIGHTS} if names is None else set(names.values())
        entries = {name: entry for file in files for name, entry in contents(folder / file).items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, SafetensorError):
        return None
    return Weights(entries if names is None else {name: entries[name] for name in names if name in entries})


def contents(file: Path) -> dict[str, Entry]:
    """What a file holds, from its header."""
    with safe_open(file, "pt") as opened:
        slices = {name: opened.get_slice(name) for name in opened.keys()}  # noqa: SIM118 (it is no mapping)
        return {name: Entry(file, tuple(part.get_shape()), part.get_dtype()) for name, part in slices.items()}

"""Safetensors files of a folder, read a few tensors at a time.

Files are memory-mapped only while their tensors are in use: touched pages of a mapped file count as
memory of the process. A tensor of which few rows are read stays mapped.
"""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Protocol

from safetensors import SafetensorError, safe_open
from torch import Tensor

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
ADAPTER = "adapter_config.json"  # transformers would merge the adapter into the weights
FLOATS = ("F32", "F16", "BF16")


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """File, shape and dtype of a tensor."""

    file: Path
    shape: tuple[int, ...]
    kind: str  # dtype name in the file


class LayerWeights(Protocol):
    """The tensors of a model, some of which are read at a time."""

    @property
    def files(self) -> list[Path]:
        """The files that hold them."""

    @property
    def size(self) -> int:
        """Number of elements of all tensors."""

    def read(self, names: Iterable[str]) -> dict[str, Tensor]:
        """These tensors in float32."""


class TensorFiles:
    """The tensors of a folder, in one file or in several with an index."""

    def __init__(self, entries: Mapping[str, TensorEntry]) -> None:
        self.entries = entries

    @property
    def files(self) -> list[Path]:
        """The files, without duplicates."""
        return sorted({entry.file for entry in self.entries.values()})

    @property
    def size(self) -> int:
        """Number of elements of all tensors."""
        return sum(math.prod(entry.shape) for entry in self.entries.values())

    def fit(self, shapes: Mapping[str, tuple[int, ...]]) -> bool:
        """True if all these tensors exist with this shape and a float dtype."""
        found = [(self.entries.get(name), shape) for name, shape in shapes.items()]
        return all(
            entry is not None and entry.shape == shape and entry.kind in FLOATS
            for entry, shape in found
        )

    def read(self, names: Iterable[str]) -> dict[str, Tensor]:
        """These tensors in float32; views of the file if they are float32 there."""
        found: dict[str, Tensor] = {}
        for file, group in groupby(sorted(names, key=self._file), self._file):
            with safe_open(file, "pt") as opened:
                found |= {name: opened.get_tensor(name).data.float() for name in group}
        return found

    def copy(self, name: str) -> Tensor:
        """A float32 copy of one tensor."""
        return self.read([name])[name].clone()

    def view(self, name: str) -> Tensor:
        """A view of one tensor in the file's dtype; unread pages take no memory."""
        with safe_open(self._file(name), "pt") as opened:
            found: Tensor = opened.get_tensor(name).data
        return found

    def strips(self, name: str) -> "MappedMatrix":
        """One matrix, read some rows at a time."""
        return MappedMatrix(name, self.entries[name])

    def _file(self, name: str) -> Path:
        return self.entries[name].file


class MappedMatrix:
    """A matrix in a file that is mapped for each slice, so that only its rows are in memory."""

    def __init__(self, name: str, entry: TensorEntry) -> None:
        self.name = name
        self.file = entry.file
        self.shape = entry.shape

    def __getitem__(self, rows: slice, /) -> Tensor:
        """Some of the rows, in the file's dtype."""
        with safe_open(self.file, "pt") as opened:
            found: Tensor = opened.get_slice(self.name)[rows].data
        return found


def find_weights(folder: Path) -> TensorFiles | None:
    """The weights that transformers would load from a folder; None if that is not plain."""
    if (folder / ADAPTER).exists():
        return None
    try:
        whole = (folder / WEIGHTS).is_file()
        names = (
            None
            if whole
            else json.loads((folder / INDEX).read_text(encoding="utf-8"))["weight_map"]
        )
        files = {WEIGHTS} if names is None else set(names.values())
        entries = {name: entry for file in files for name, entry in contents(folder / file).items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, SafetensorError):
        return None
    return TensorFiles(
        entries if names is None else {name: entries[name] for name in names if name in entries}
    )


def contents(file: Path) -> dict[str, TensorEntry]:
    """Tensors of a file, from its header."""
    with safe_open(file, "pt") as opened:
        names = opened.keys()  # not a mapping: it cannot be iterated itself
        slices = {name: opened.get_slice(name) for name in names}
        return {
            name: TensorEntry(file, tuple(part.get_shape()), part.get_dtype())
            for name, part in slices.items()
        }

"""A file of named arrays, read straight into the memory of compiled code."""

import json
import os
from collections.abc import Mapping
from io import FileIO
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from sapwood.common.cache_dir import write_cached_by

MAGIC = b"sapwood-arrays-1"
ALIGN = 64  # bytes: each array begins at a multiple
LONGEST = 1 << 26  # bytes of a header

Array = np.ndarray[Any, Any]
Facts = Mapping[str, Any]  # of JSON


class UnsuitableFile(Exception):
    """The file is missing, damaged, or was written for something else."""


def write_arrays(place: Path, facts: Facts, arrays: Mapping[str, Array]) -> bool:
    """Write a file atomically; False when it cannot be written, since a cache can be remade."""
    return write_cached_by(place, lambda file: write_to(file, facts, arrays))


def write_to(file: BinaryIO, facts: Facts, arrays: Mapping[str, Array]) -> None:
    """Write the header, then the arrays in order."""
    index = {}
    offset = 0  # bytes from the end of the header
    for name, array in arrays.items():
        index[name] = [array.dtype.str, list(array.shape), offset]
        offset += -(-array.nbytes // ALIGN) * ALIGN
    text = json.dumps({"facts": facts, "arrays": index, "bytes": offset}).encode()
    file.write(MAGIC + len(text).to_bytes(8, "little") + text)
    pad(file)
    for array in arrays.values():
        file.write(np.ascontiguousarray(array).data)
        pad(file)


def pad(file: BinaryIO) -> None:
    """Write zeros up to the next multiple of ALIGN."""
    file.write(bytes(-file.tell() % ALIGN))


def read_into(file: FileIO, out: Array) -> None:
    """Read as many bytes as an array has; a system call may read less than it was asked for."""
    left = out.reshape(-1).view(np.uint8)
    while len(left):
        count = file.readinto(left.data)
        if not count:
            raise UnsuitableFile
        left = left[count:]


class ArrayFile:
    """An open file of arrays; what does not suit raises `UnsuitableFile`."""

    def __init__(self, file: FileIO, facts: Facts) -> None:
        """Raises `UnsuitableFile` unless the file was written with these `facts`."""
        self._file = file
        try:
            if file.read(len(MAGIC)) != MAGIC:
                raise UnsuitableFile
            length = int.from_bytes(file.read(8), "little")
            record = json.loads(file.read(min(length, LONGEST)))
            self._index: dict[str, list[Any]] = record["arrays"]
            self._start = -(-file.tell() // ALIGN) * ALIGN
            size = os.fstat(file.fileno()).st_size
            suits = record["facts"] == facts and size == self._start + record["bytes"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UnsuitableFile from error
        if not suits:
            raise UnsuitableFile

    def __contains__(self, name: str) -> bool:
        """True if there is an array of this name."""
        return name in self._index

    def fill(self, name: str, out: Array) -> Array:
        """Read an array into memory that has its dtype and shape."""
        try:
            kind, shape, offset = self._index[name]
            if kind != out.dtype.str or tuple(shape) != out.shape:
                raise UnsuitableFile
            self._file.seek(self._start + offset)
            read_into(self._file, out)
        except (OSError, KeyError, ValueError) as error:
            raise UnsuitableFile from error
        return out

    def read(self, name: str) -> Array:
        """A small array."""
        try:
            kind, shape, _ = self._index[name]
            made = np.empty(tuple(shape), np.dtype(kind))
        except (KeyError, ValueError, TypeError) as error:
            raise UnsuitableFile from error
        return self.fill(name, made)

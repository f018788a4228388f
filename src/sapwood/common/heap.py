"""Memory beside the C library's heap, and returning what is free there to the system."""

import contextlib
import ctypes
import math
import mmap
from typing import Any

import numpy as np


def trim_heap() -> None:
    """Return freed memory to the system; the C library would keep it."""
    with contextlib.suppress(OSError, AttributeError):  # not every C library has it
        ctypes.CDLL(None).malloc_trim(0)


def zeros_when_touched(shape: tuple[int, ...], dtype: Any) -> Any:
    """An array of zeros whose pages take memory once they are written.

    Arrays of some megabytes that come from the heap are cleared at once.
    """
    size = math.prod(shape) * np.dtype(dtype).itemsize
    return np.frombuffer(mmap.mmap(-1, max(size, 1)), dtype, math.prod(shape)).reshape(shape)

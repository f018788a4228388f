"""Memory of the C library's heap: return what is free to the system."""

import contextlib
import ctypes


def trim_heap() -> None:
    """Return freed memory to the system; the C library would keep it."""
    with contextlib.suppress(OSError, AttributeError):  # not every C library has it
        ctypes.CDLL(None).malloc_trim(0)

"""Disk errors of the libraries written in Rust, which raise them under types of their own."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

NUMBER = re.compile(r"\(os error (\d+)\)")  # how Rust spells an error of the system


def disk_error(error: BaseException) -> OSError | None:
    """The error of the system that an exception's message names; None if it names none."""
    found = NUMBER.search(str(error))
    if found is None:
        return None
    number = int(found[1])
    return OSError(number, os.strerror(number))


@contextmanager
def as_os_errors() -> Iterator[None]:
    """Raise errors of the disk as OSError, whichever library they come from."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        if (real := disk_error(error)) is None:
            raise
        raise real from error

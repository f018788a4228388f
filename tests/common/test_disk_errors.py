"""Errors of a full disk have one type, whichever library meets them first."""

import errno

import pytest

from sapwood.common.disk_errors import as_os_errors, disk_error


def test_a_full_disk_of_a_rust_library_is_an_os_error() -> None:
    with pytest.raises(OSError, match="No space left on device") as caught, as_os_errors():
        raise Exception("No space left on device (os error 28)")
    assert caught.value.errno == errno.ENOSPC


def test_other_errors_stay_as_they_are() -> None:
    assert disk_error(ValueError("no numbers here")) is None
    with pytest.raises(ZeroDivisionError), as_os_errors():
        raise ZeroDivisionError
    with pytest.raises(FileNotFoundError), as_os_errors():
        raise FileNotFoundError(errno.ENOENT, "gone")

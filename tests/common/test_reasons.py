"""The reason of an exception, as error messages quote it."""

import errno
import json

import pytest

from sapwood.common.reasons import reason_of


def of_json(content: str | bytes) -> Exception:
    with pytest.raises((ValueError, RecursionError)) as caught:
        json.loads(content)
    return caught.value


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (of_json("not json"), "Expecting value at character 1"),
        (of_json(b'"caf\xe9"'), "not UTF-8 at byte 4"),
        (of_json("[" * 100000), "its brackets nest too deeply"),
        (FileNotFoundError(errno.ENOENT, "No such file", "/x"), "No such file"),
        (KeyError("kind"), "'kind' is missing"),
        (ValueError("two\n lines"), "two lines"),
        (ValueError(), "ValueError"),
    ],
)
def test_reasons(error: Exception, reason: str) -> None:
    assert reason_of(error) == reason

"""Reasons of exceptions in a few words, for the middle of an error message."""

import json


def reason_of(error: BaseException) -> str:
    """The reason why a file, or a line of it, could not be read."""
    match error:
        case json.JSONDecodeError():
            return f"{error.msg} at character {error.pos + 1}"
        case UnicodeDecodeError():
            return f"not UTF-8 at byte {error.start}"
        case OSError() if error.strerror:
            return error.strerror
        case RecursionError():
            return "its brackets nest too deeply"
        case KeyError():
            return f"{error!s} is missing"
    return " ".join(str(error).split()) or type(error).__name__

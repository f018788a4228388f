"""Suggestions for misspelt names: the known name that was probably meant."""

import difflib
from collections.abc import Iterable


def closest(word: str, known: Iterable[str]) -> str | None:
    """The known name most like a word, case aside; None if none is close."""
    names = {name.lower(): name for name in known}
    found = difflib.get_close_matches(word.lower(), names, n=1, cutoff=0.6)
    return names[found[0]] if found else None


def suggestion(word: str, known: Iterable[str], otherwise: str) -> str:
    """The end of an error message: `did you mean NAME?`, or `otherwise` if no name is close."""
    name = closest(word, known)
    return otherwise if name is None else f"did you mean {name}?"

"""Reads a trace back from its file."""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sapwood.common.reasons import reason_of
from sapwood.errors import SapwoodError
from sapwood.trace.rounds import VERSION, Trace, TracedEnd, TracedPrompt, TracedRound, TraceHeader

WAY_OUT = "record one with `sapwood run PROMPT --trace FILE`"


def read(path: Path) -> Trace:
    """The trace in a file; a last line that was truncated by an interruption is left out."""
    found: Trace | None = None
    for number, line, last in lines(path):
        try:
            record = json.loads(line)
            found = take(found, record)
        except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
            if last and found is not None and not line.endswith("\n"):
                break
            raise SapwoodError(
                f"line {number} of {path} is no line of a trace ({reason_of(error)}); {WAY_OUT}"
            ) from error
    if found is None or not found.asked:
        raise SapwoodError(f"{path} holds no rounds; {WAY_OUT}")
    return found


def lines(path: Path) -> Iterator[tuple[int, str, bool]]:
    """Number and text of each line, and True for the last."""
    try:
        with (
            gzip.open(path, "rt", encoding="utf-8")
            if path.suffix == ".gz"
            else path.open(encoding="utf-8") as file
        ):
            whole = file.readlines()
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise SapwoodError(
            f"{path} cannot be read as a trace ({reason_of(error)}); {WAY_OUT}"
        ) from error
    for number, line in enumerate(whole, 1):
        if line.strip():
            yield number, line, number == len(whole)


def take(found: Trace | None, line: dict[str, Any]) -> Trace:
    """Add a line to the trace."""
    kind = line["kind"]
    if found is None:
        if kind != "header" or line["version"] != VERSION:
            raise ValueError(f"the first line must be a header of version {VERSION}")
        return Trace(TraceHeader.from_json(line))
    found.words.update({int(token): word for token, word in line.pop("words", {}).items()})
    if kind == "prompt":
        found.asked.append(TracedPrompt.from_json(line))
    elif kind == "round":
        found.rounds.append(TracedRound.from_json(line))
    elif kind == "end":
        found.ended[line["prompt"]] = TracedEnd(
            line["prompt"], line["finish"], line["text"], line["stats"]
        )
    else:
        raise ValueError(f"kind {kind!r} is not known")
    return found

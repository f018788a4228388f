"""Writes plain records as YAML: mappings, lists, text, numbers and booleans."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

# text that YAML reads as text without quotes
BARE = re.compile(r"[A-Za-z_/][A-Za-z0-9_./-]*(?::[A-Za-z0-9_./-]+)*")
WORDS = frozenset(("true", "false", "yes", "no", "on", "off", "null", "y", "n"))


def documents(records: Sequence[Any]) -> str:
    """Several records as the documents of one file."""
    return "---\n".join("\n".join([*lines(record), ""]) for record in records)


def lines(value: Any, indent: str = "") -> Iterator[str]:
    """The lines of a mapping or a list."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from entry(f"{indent}{scalar(key)}:", item, indent + "  ")
    else:
        for item in value:
            first, *rest = lines(item, indent + "  ") if nested(item) else (scalar(item),)
            yield f"{indent}- {first.lstrip()}"
            yield from rest


def entry(start: str, value: Any, indent: str) -> Iterator[str]:
    """The lines of one entry of a mapping."""
    if nested(value):
        yield start
        yield from lines(value, indent)
    elif isinstance(value, str) and "\n" in value:
        yield f"{start} |"
        yield from (f"{indent}{line}" for line in value.splitlines())
    else:
        yield f"{start} {scalar(value)}"


def nested(value: Any) -> bool:
    """True for a mapping or a list that has entries."""
    return isinstance(value, Mapping | list | tuple) and bool(value)


def scalar(value: Any) -> str:
    """A value on one line; text that could be read as something else is quoted."""
    if isinstance(value, str) and BARE.fullmatch(value) and value.lower() not in WORDS:
        return value
    return json.dumps(value)

"""Grammars as their authors write them, and limits on their size."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from sapwood.errors import SapwoodError

Kind = Literal["json_schema", "regex", "lark"]

MOST_BYTES = {"json_schema": 65_536, "regex": 4_096, "lark": 65_536}
MOST_DEPTH = 32  # objects and lists inside each other
MOST_NODES = 2_048  # objects, lists and plain values of a schema, choices of an enum not counted
MOST_CHOICES = 4_096  # of one enum
MOST_COUNT = 100_000  # repetitions, lengths and sizes that a schema may ask for
COUNTS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
ANYTHING = {"type": "object"}


@dataclass(frozen=True, slots=True)
class Grammar:
    """A grammar that an output must follow."""

    kind: Kind
    source: str  # JSON of a schema, a regular expression, or rules in Lark's notation

    def __post_init__(self) -> None:
        size = len(self.source.encode("utf-8", "surrogatepass"))
        most = MOST_BYTES[self.kind]
        if size > most:
            raise SapwoodError(
                f"the {self.kind} has {size} bytes, but may have {most}; make it smaller"
            )


def json_schema(schema: Any) -> Grammar:
    """JSON that a schema describes, on one line."""
    if not isinstance(schema, dict | bool):
        raise SapwoodError(f"a JSON schema must be an object, not {type(schema).__name__}")
    check_schema(schema)
    try:
        source = json.dumps(schema, ensure_ascii=False, allow_nan=False)
    except ValueError as error:
        raise SapwoodError(
            f"the JSON schema holds a number that JSON cannot write ({error}); leave it out"
        ) from error
    return Grammar("json_schema", source)


def json_object() -> Grammar:
    """Any JSON object."""
    return json_schema(ANYTHING)


def regex(pattern: str) -> Grammar:
    """Text that a regular expression matches as a whole; no look-around, no backreferences."""
    return Grammar("regex", pattern)


def lark(rules: str) -> Grammar:
    """Text that follows context-free rules in Lark's notation, from `start` on."""
    return Grammar("lark", rules)


# --------------------------------------------------------------------------------------- limits
def check_schema(schema: Any) -> None:
    """Refuse a schema that is nested too deep, has too many parts or too large counts."""
    for nodes, (depth, value) in enumerate(walk(schema), 1):
        if depth > MOST_DEPTH:
            raise SapwoodError(
                f"the JSON schema is nested more than {MOST_DEPTH} deep; flatten it with $defs"
            )
        if nodes > MOST_NODES:
            raise SapwoodError(f"the JSON schema has more than {MOST_NODES} parts; make it smaller")
        if isinstance(value, dict):
            check_counts(value)


def check_counts(schema: dict[str, Any]) -> None:
    """Refuse an enum of too many choices, and counts beyond the length of an output."""
    choices = schema.get("enum")
    if isinstance(choices, list) and len(choices) > MOST_CHOICES:
        raise SapwoodError(
            f"an enum of the JSON schema has {len(choices)} choices, but may have {MOST_CHOICES}"
        )
    for name in COUNTS:
        value = schema.get(name)
        if isinstance(value, int | float) and value > MOST_COUNT:
            raise SapwoodError(f"{name}={value} of the JSON schema is above {MOST_COUNT}; lower it")


def walk(schema: Any) -> Iterator[tuple[int, Any]]:
    """Every part of a schema with its depth, without recursion: the depth is unchecked yet."""
    waiting = [(0, schema)]
    while waiting:
        depth, value = waiting.pop()
        yield depth, value
        if isinstance(value, dict):
            waiting += [
                (depth + 1, inner) for name, inner in value.items() if not is_enum(name, inner)
            ]
        elif isinstance(value, list):
            waiting += [(depth + 1, inner) for inner in value]


def is_enum(name: str, value: Any) -> bool:
    """True for a list of plain choices, which has a limit of its own."""
    return (
        name == "enum"
        and isinstance(value, list)
        and not any(isinstance(item, dict | list) for item in value)
    )

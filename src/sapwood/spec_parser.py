"""Parser of `name(key=value, ...)`, the spelling of parts everywhere.

A value is a number, true/false/none, a quoted string, a list in brackets, or a name with or
without options of its own.
"""

import re
from dataclasses import dataclass, field
from typing import Any

from sapwood.errors import SapwoodError

TOKEN = re.compile(
    r"""\s*(?:
    (?P<number>[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?(?![\w+-])) |
    (?P<string>'[^']*'|"[^"]*") |
    (?P<word>[A-Za-z_][\w.+/-]*) |
    (?P<mark>[()\[\],=+])
    )""",
    re.VERBOSE,
)
FORM = "write name(key=value, ...), paths in quotes"
CONSTANTS = {"true": True, "false": False, "none": None}


@dataclass
class PartSpec:
    """A name with options, not yet looked up in the registry."""

    name: str
    options: dict[str, Any] = field(default_factory=dict)


class SpecParser:
    """Recursive descent over the tokens of one spelling."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = []
        position = 0
        while text[position:].strip():
            match = TOKEN.match(text, position)
            if match is None:
                raise self.fault(f"cannot read {text[position:].strip()!r}")
            self.tokens.append((str(match.lastgroup), match.group().strip()))
            position = match.end()

    def fault(self, reason: str) -> SapwoodError:
        """The error of this spelling."""
        return SapwoodError(f"{self.text!r} is not a part: {reason}; {FORM}")

    def peek(self) -> str:
        """The next token's text, empty at the end."""
        return self.tokens[0][1] if self.tokens else ""

    def take(self, expected: str = "") -> tuple[str, str]:
        """The next token, which must be `expected` when given."""
        if not self.tokens or (expected and self.peek() != expected):
            raise self.fault(f"expected {expected or 'more'} before {self.peek() or 'the end'!r}")
        return self.tokens.pop(0)

    def value(self) -> Any:
        """A number, constant, string, list or call."""
        kind, text = self.take()
        if kind == "number":
            return float(text) if any(mark in text for mark in ".eE") else int(text)
        if kind == "string":
            return text[1:-1]
        if kind == "word":
            return CONSTANTS[text] if text in CONSTANTS else self.call(text)
        if text == "[":
            return self.items()
        raise self.fault(f"unexpected {text!r}")

    def items(self) -> list[Any]:
        """The rest of a list, after its bracket."""
        found: list[Any] = []
        while self.peek() != "]":
            found.append(self.value())
            if self.peek() != "]":
                self.take(",")
        self.take("]")
        return found

    def call(self, name: str) -> PartSpec:
        """The options of a name, if it has any."""
        made = PartSpec(name)
        if self.peek() != "(":
            return made
        self.take("(")
        while self.peek() != ")":
            kind, key = self.take()
            if kind != "word" or key in made.options:
                raise self.fault(f"{key!r} is not a new option name")
            self.take("=")
            made.options[key] = self.value()
            if self.peek() != ")":
                self.take(",")
        self.take(")")
        return made

    def calls(self) -> list[PartSpec]:
        """All parts, joined by `+`."""
        found: list[PartSpec] = []
        while self.tokens:
            if found:
                self.take("+")
            kind, name = self.take()
            if kind != "word":
                raise self.fault(f"{name!r} is not a name")
            found.append(self.call(name))
        return found


def read(text: str) -> PartSpec:
    """Parse the spelling of one part."""
    calls = read_all(text)
    if len(calls) != 1:
        raise SapwoodError(
            f"{text!r} is not a part: it names {len(calls)} where one belongs; {FORM}"
        )
    return calls[0]


def read_all(text: str) -> list[PartSpec]:
    """Parse parts joined by `+`."""
    parser = SpecParser(text)
    try:
        return parser.calls()
    except RecursionError:
        raise SapwoodError(
            f"{text[:40]!r}... is not a part: its brackets are nested too deeply; {FORM}"
        ) from None

"""Splits the output of a model into reasoning, text and tool calls, complete or while it grows.

What is found of an output that still grows is never taken back: text that may turn out to be markup
or a call waits.
"""

import ast
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sapwood.server.openai.model_formats import CallFormat, OutputSyntax, ReasoningFormat
from sapwood.tokenizer.detokenizer import overlap

LONGEST_PYTHON = 16384  # characters of calls in Python's form
NAME_KEYS = ("name", "tool_name")
ARGUMENT_KEYS = ("arguments", "parameters")


@dataclass(frozen=True, slots=True)
class ParsedToolCall:
    """A call that the model made; `arguments` is JSON, or the beginning of it."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class ParsedOutput:
    """The parts of an output."""

    reasoning: str
    text: str
    calls: list[ParsedToolCall]
    reasoning_end: int = 0  # characters of the output up to the end of its reasoning


@dataclass(frozen=True, slots=True)
class KnownFunctions:
    """The functions that an output may call."""

    names: Sequence[str] = ()  # empty: any
    # (function, parameter) whose values are texts; other values are read as JSON where they can be
    texts: frozenset[tuple[str, str]] = field(default_factory=frozenset)

    def knows(self, name: object) -> bool:
        """True for the name of a function that may be called."""
        return isinstance(name, str) and (not self.names or name in self.names)


# ------------------------------------------------------------------------------------- reasoning
def split_reasoning(raw: str, syntax: OutputSyntax | None, *, done: bool) -> tuple[str, str, int]:
    """Reasoning, the rest of the output, and the place where the rest begins."""
    form = syntax.reasoning if syntax else None
    if syntax is None or form is None:
        return "", raw, 0
    lead = raw.lstrip()
    if not lead.startswith(form.open):
        if not done and form.open.startswith(lead):
            return "", "", 0
        if not syntax.opened:
            return "", raw, 0
    start = len(raw) - len(lead) + len(form.open) if lead.startswith(form.open) else 0
    end = raw.find(form.close, start)
    if end < 0:
        held = raw[start:]
        size = len(held) if done else len(held) - overlap(held, form.close)
        return held[:size].strip(), "", len(raw)
    rest = end + len(form.close)
    return raw[start:end].strip(), raw[rest:].lstrip("\n"), rest


def without_markup(text: str, form: ReasoningFormat | None, *, done: bool) -> str:
    """The text without markup around it; a possible beginning of markup waits."""
    if form is None or not form.remove:
        return text
    for mark in form.remove:
        text = text.replace(mark, "")
    if not done:
        text = text[: len(text) - max(overlap(text, mark) for mark in form.remove)]
    return text


# ------------------------------------------------------------------------------------- calls
def split_sections(
    text: str, form: CallFormat, functions: KnownFunctions, *, done: bool
) -> tuple[str, list[ParsedToolCall]]:
    """The text without its calls, and the calls.

    A section that holds no call stays text. A text that is only the JSON of a call is a call too:
    some models were trained so.
    """
    if not done and text.lstrip()[:1] in ("", "{", "["):
        return "", []
    calls: list[ParsedToolCall] = []
    pieces: list[str] = []
    place = 0
    while (start := text.find(form.open, place)) >= 0:
        inside = start + len(form.open)
        end = text.find(form.close or form.open, inside)
        if end < 0 and not done:
            calls += [] if form.arguments != "json" else whole_calls(text[inside:], form, functions)
            pieces.append(text[place:start])
            place = len(text)
            break
        end = len(text) if end < 0 else end
        stop = min(end + len(form.close), len(text))
        found = read_section(text[inside:end], form, functions)
        pieces.append(text[place:start] if found else text[place:stop])
        calls += found
        place = stop
    rest = text[place:]
    pieces.append(rest if done else rest[: len(rest) - overlap(rest, form.open)])
    if done and not calls and text.lstrip()[:1] in ("{", "["):
        calls = bare_calls(text, form, functions)
        pieces = [] if calls else pieces
    content = "".join(pieces)
    return (content.strip() if calls and done else content), calls


def read_section(body: str, form: CallFormat, functions: KnownFunctions) -> list[ParsedToolCall]:
    """The calls of a whole section; none if a part of it is no call."""
    if form.arguments == "python":
        return python_calls(body, functions)
    if form.call is None:
        return json_calls(body, functions)
    found = list(matched_calls(body, form, functions, nothing="{}"))
    return [call for call in found if call is not None] if None not in found else []


def whole_calls(body: str, form: CallFormat, functions: KnownFunctions) -> list[ParsedToolCall]:
    """The complete calls of a section that still grows."""
    calls: list[ParsedToolCall] = []
    for call in matched_calls(body, form, functions) if form.call is not None else ():
        if call is None:
            break
        calls.append(call)
    return calls


def matched_calls(
    body: str, form: CallFormat, functions: KnownFunctions, nothing: str = ""
) -> Iterator[ParsedToolCall | None]:
    """The calls that a pattern finds; None for one that cannot be read.

    `nothing` is read where a call has no arguments.
    """
    assert form.call is not None
    for found in form.call.finditer(body):
        name = found["name"].strip()
        given = found["arguments"]
        if form.arguments == "pairs":
            values: Any = paired_values(given, form, name, functions)
        else:
            values = read_json(given.strip() or nothing)
        if not functions.knows(name) or not isinstance(values, Mapping):
            yield None
        elif form.arguments == "json":
            yield ParsedToolCall(name, given.strip() or nothing)
        else:
            yield ParsedToolCall(name, json.dumps(values, ensure_ascii=False))


def paired_values(
    body: str, form: CallFormat, name: str, functions: KnownFunctions
) -> dict[str, Any]:
    """Arguments that are written as pairs of name and value."""
    assert form.pair is not None
    values: dict[str, Any] = {}
    for found in form.pair.finditer(body):
        key, value = found["key"].strip(), found["value"]
        parsed = None if (name, key) in functions.texts else read_json(value)
        values[key] = value if parsed is None and value.strip() != "null" else parsed
    return values


def json_calls(body: str, functions: KnownFunctions) -> list[ParsedToolCall]:
    """The calls in a JSON text; none if it is anything else."""
    found = read_json(body)
    calls = []
    for item in found if isinstance(found, list) else [found]:
        name = first_of(item, NAME_KEYS)
        given = first_of(item, ARGUMENT_KEYS)
        if not functions.knows(name) or not isinstance(given, dict):
            return []
        calls.append(ParsedToolCall(name, json.dumps(given, ensure_ascii=False)))
    return calls


def first_of(item: Any, keys: Sequence[str]) -> Any:
    """The first of these members that an object has."""
    if not isinstance(item, dict):
        return None
    return next((item[key] for key in keys if key in item), None)


def bare_calls(text: str, form: CallFormat, functions: KnownFunctions) -> list[ParsedToolCall]:
    """The calls of a text that is nothing else."""
    python = python_calls(text, functions) if form.arguments == "python" else []
    return python or json_calls(text, functions)


def python_calls(body: str, functions: KnownFunctions) -> list[ParsedToolCall]:
    """Calls in the form of Python source: in lines, or as a list."""
    if len(body) > LONGEST_PYTHON:
        return []
    try:
        statements = ast.parse(body.strip()).body
        values = [each.value for each in statements if isinstance(each, ast.Expr)]
        if len(values) != len(statements):
            return []
        flat = [one for value in values for one in elements(value)]
        calls = [python_call(one) for one in flat]
    except (ValueError, SyntaxError, RecursionError, MemoryError, TypeError):
        return []
    return calls if calls and all(functions.knows(call.name) for call in calls) else []


def elements(value: ast.expr) -> list[ast.expr]:
    """The elements of a list, or the value itself."""
    return value.elts if isinstance(value, ast.List) else [value]


def python_call(value: ast.expr) -> ParsedToolCall:
    """A call with named arguments that are constants."""
    if not isinstance(value, ast.Call) or value.args:
        raise ValueError("no call with named arguments")
    given = {str(one.arg): ast.literal_eval(one.value) for one in value.keywords if one.arg}
    return ParsedToolCall(ast.unparse(value.func), json.dumps(given, ensure_ascii=False))


def read_json(text: str) -> Any:
    """The value of a JSON text; None if it is none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None

"""What an answer must look like: a response format or tools, as a grammar, and how calls are read back."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from sapwood.grammar import Compiled, compiled
from sapwood.serve.content import blamed
from sapwood.serve.errors import too_much
from sapwood.serve.limits import Limits
from sapwood.serve.prompts import Prompts
from sapwood.serve.replies import Call, CalledFunction
from sapwood.serve.schema import ChatRequest, Common
from sapwood.serve.tools import OPEN, grammar_of, read_calls
from sapwood.text import overlap


@dataclass(frozen=True)
class Shape:
    """The wanted form of a text."""

    grammar: Compiled | None = None
    names: tuple[str, ...] = ()  # functions that the text may call


def shape_of(asked: Common, prompts: Prompts, limits: Limits) -> Shape | None:
    """The form a request asks for; None is free text."""
    wanted = asked.response_format
    tools, choice, parallel = None, None, None
    if isinstance(asked, ChatRequest):
        tools, choice, parallel = asked.tools, asked.tool_choice, asked.parallel_tool_calls
    if wanted is None and not tools and choice in (None, "none", "auto"):
        return None
    check_size(wanted, "response_format", limits)
    check_size(tools, "tools", limits)
    param = "tools" if tools else "tool_choice" if wanted is None else "response_format"
    with blamed(param):
        rules = grammar_of(wanted, tools, choice, parallel=parallel is not False)
        grammar = None if rules is None else compiled(rules, prompts.text, prompts.info.vocab)
    names = () if choice == "none" else tuple(str(tool["function"]["name"]) for tool in tools or ())
    return Shape(grammar, names)


def called(shape: Shape | None, text: str) -> tuple[str, list[Call]]:
    """A text without the calls in it, and the calls."""
    if shape is None or not shape.names:
        return text, []
    rest, found = read_calls(text, shape.names)
    return rest, [Call(call.id, CalledFunction(call.name, call.arguments)) for call in found]


def certain(shape: Shape | None, text: str) -> int:
    """How many characters of a text that still grows are surely not part of a call."""
    if shape is None or not shape.names:
        return len(text)
    if text.lstrip()[:1] in ("", "{", "["):  # some models write a call as bare JSON
        return 0
    start = text.find(OPEN)
    return len(text) - overlap(text, OPEN) if start < 0 else start


def check_size(value: Any, name: str, limits: Limits) -> None:
    """Refuse what would take long to read."""
    if value is None:
        return
    if isinstance(value, list) and len(value) > limits.tools:
        raise too_much(f"the number of {name}", len(value), limits.tools, name)
    size = len(msgspec.json.encode(value))
    if size > limits.schema_bytes:
        raise too_much(f"the size of {name}", f"{size} bytes", limits.schema_bytes, name)
    depths = list(levels(value))
    if max(depths) > limits.schema_depth:
        raise too_much(f"the depth of {name}", max(depths), limits.schema_depth, name)
    if len(depths) > limits.schema_nodes:
        raise too_much(f"the number of values in {name}", len(depths), limits.schema_nodes, name)


def levels(value: Any) -> Iterator[int]:
    """The depth of every object and list inside a value."""
    waiting = [(value, 1)]
    while waiting:
        inner, depth = waiting.pop()
        if isinstance(inner, dict | list):
            yield depth
            waiting += [(item, depth + 1) for item in (inner.values() if isinstance(inner, dict) else inner)]

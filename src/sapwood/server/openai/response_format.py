"""Response formats and tools of a request as a grammar."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from sapwood.server.errors import ApiError, too_much
from sapwood.server.limits import Limits
from sapwood.server.openai.chat_prompts import ChatPrompts
from sapwood.server.openai.message_content import param_errors
from sapwood.server.openai.output_formats import FORMAT_FIELDS
from sapwood.server.openai.output_parser import KnownFunctions
from sapwood.server.openai.request_schema import ChatRequest, RequestFields
from sapwood.server.openai.tools import Constraint, Tool, output_rules, read_choice, read_tools
from sapwood.structured_output import Grammar
from sapwood.structured_output.compiled import CompiledGrammar, compiled


@dataclass(frozen=True)
class ResponseFormat:
    """Grammar of the output, and the functions that it may call."""

    grammar: CompiledGrammar | None = None
    functions: KnownFunctions = KnownFunctions()
    constraint: Constraint = "none"  # calls that the grammar constrains


def response_format_of(
    body: RequestFields, prompts: ChatPrompts, limits: Limits
) -> ResponseFormat | None:
    """The response format that a request asks for; None is free text."""
    param, wanted = format_field(body)
    check_size(wanted, param, limits)
    with param_errors(param):
        form = None if wanted is None else FORMAT_FIELDS[param](wanted)
        if not isinstance(body, ChatRequest) or (not body.tools and body.tool_choice is None):
            return None if form is None else ResponseFormat(compile_rules(form, prompts))
    return with_tools(body, form, prompts, limits)


def format_field(body: RequestFields) -> tuple[str, Any]:
    """Name and value of the field that sets the format; at most one may."""
    given = [(name, getattr(body, name)) for name in FORMAT_FIELDS]
    found = [(name, value) for name, value in given if value is not None]
    if len(found) > 1 and found[0] == ("response_format", {"type": "text"}):
        found = found[1:]
    if len(found) > 1:
        (first, _), (second, _) = found[:2]
        raise ApiError(
            400, f"{first} and {second} both set the format of the output; send one", second
        )
    return found[0] if found else ("response_format", None)


def with_tools(
    body: ChatRequest, form: Grammar | None, prompts: ChatPrompts, limits: Limits
) -> ResponseFormat:
    """The response format of a request with tools."""
    check_size(body.tools, "tools", limits)
    with param_errors("tools"):
        tools = read_tools(body.tools)
    with param_errors("tool_choice"):
        choice, offered = read_choice(body.tool_choice, tools)
    with param_errors("tools" if tools else "response_format"):
        rules, constraint = output_rules(
            form, choice, offered, parallel=body.parallel_tool_calls is not False
        )
        grammar = None if rules is None else compile_rules(rules, prompts)
    called = [] if choice == "none" else tools
    functions = KnownFunctions(tuple(tool.name for tool in called), text_parameters(called))
    return ResponseFormat(grammar, functions, constraint)


def text_parameters(tools: Sequence[Tool]) -> frozenset[tuple[str, str]]:
    """Function and name of every parameter that is a text."""
    found = set()
    for tool in tools:
        properties = tool.schema.get("properties")
        for name, schema in properties.items() if isinstance(properties, Mapping) else ():
            if isinstance(schema, Mapping) and schema.get("type") == "string":
                found.add((tool.name, name))
    return frozenset(found)


def compile_rules(rules: Grammar, prompts: ChatPrompts) -> CompiledGrammar:
    """A grammar compiled for the model's tokens."""
    return compiled(rules, prompts.tokenizer, prompts.info.vocab)


def check_size(value: Any, name: str, limits: Limits) -> None:
    """Refuse a value that would take long to compile."""
    if value is None:
        return
    if name == "tools" and len(value) > limits.tools:
        raise too_much("the number of tools", len(value), limits.tools, name)
    size = len(msgspec.json.encode(value))
    if size > limits.schema_bytes:
        raise too_much(f"the size of {name}", f"{size} bytes", limits.schema_bytes, name)
    depths = list(container_depths(value))
    if max(depths, default=0) > limits.schema_depth:
        raise too_much(f"the depth of {name}", max(depths), limits.schema_depth, name)
    if len(depths) > limits.schema_nodes:
        raise too_much(f"the number of values in {name}", len(depths), limits.schema_nodes, name)


def container_depths(value: Any) -> Iterator[int]:
    """The depth of every object and list inside a value."""
    waiting = [(value, 1)]
    while waiting:
        inner, depth = waiting.pop()
        if isinstance(inner, dict | list):
            yield depth
            waiting += [
                (item, depth + 1) for item in (inner.values() if isinstance(inner, dict) else inner)
            ]

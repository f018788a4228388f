"""Tools of a request: described in the prompt, enforced by a grammar.

A call is `<tool_call>` and JSON of a name and arguments, the form that most open models were
trained on. A template that knows tools describes them itself; for others a short text is added to
the system message. Under `required`, or a named function, the grammar allows nothing but calls;
under `auto` it constrains the calls of strict functions, wherever in the text they begin.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sapwood.errors import SapwoodError
from sapwood.server.openai.output_formats import refuse_members
from sapwood.structured_output import Grammar, json_schema, lark
from sapwood.structured_output.compiled import STYLE
from sapwood.tokenizer.chat_template import uses

OPEN, CLOSE = "<tool_call>", "</tool_call>"
END = json.dumps(f"}}\n{CLOSE}")  # of a call's JSON, as a quoted string of a rule
NAME = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
CHOICES = ("none", "auto", "required")
# calls that a grammar constrains: none, the whole output, those inside a text, or those that stand
# instead of an answer in another format
Constraint = Literal["none", "calls", "text", "answer"]
FUNCTION_MEMBERS = ("name", "description", "parameters", "strict")
ANSWER_OPEN, ANSWER_CLOSE = "<tool_response>", "</tool_response>"
INTRODUCTION = (
    "You can call these functions, given as JSON:\n{tools}\n"
    'To call one, write\n<tool_call>\n{{"name": "NAME", "arguments": ARGUMENTS}}\n</tool_call>\n'
    "with its arguments as a JSON object."
)
ENDINGS = {"required": " Call at least one of them now.", "auto": " Otherwise answer in words."}


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call."""

    name: str
    schema: Any  # of its arguments
    strict: bool
    definition: Mapping[str, Any]  # as the caller wrote it


# ------------------------------------------------------------------------------------- parameters
def read_tools(tools: Sequence[Any] | None) -> list[Tool]:
    """The functions of a request."""
    found: dict[str, Tool] = {}
    for index, given in enumerate(tools or ()):
        inner = given.get("function") if isinstance(given, Mapping) else None
        if not isinstance(inner, Mapping) or given.get("type", "function") != "function":
            raise SapwoodError(
                f"tools[{index}] must be {{'type': 'function', 'function': {{...}}}}"
            )
        refuse_members(given, ("type", "function"), f"tools[{index}]")
        refuse_members(inner, FUNCTION_MEMBERS, f"tools[{index}].function")
        name = inner.get("name")
        schema = inner.get("parameters") or {"type": "object", "properties": {}}
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise SapwoodError(
                f"tools[{index}] needs a name of 1 to 64 letters, digits, '_', '-' or '.'"
            )
        if name in found:
            raise SapwoodError(f"two tools are called {name!r}; give each a name of its own")
        if not isinstance(schema, Mapping):
            raise SapwoodError(f"the parameters of {name!r} must be a JSON schema")
        found[name] = Tool(name, schema, inner.get("strict") is True, given)
    return list(found.values())


def read_choice(choice: Any, tools: Sequence[Tool]) -> tuple[str, Sequence[Tool]]:
    """The choice (none, auto, required or named), and the functions it applies to."""
    if choice is None:
        return ("auto" if tools else "none"), tools
    if isinstance(choice, str) and choice in CHOICES:
        if choice == "required" and not tools:
            raise SapwoodError("tool_choice is 'required', but there are no tools; send some")
        return choice, tools
    inner = choice.get("function") if isinstance(choice, Mapping) else None
    name = inner.get("name") if isinstance(inner, Mapping) else None
    if not isinstance(name, str) or choice.get("type", "function") != "function":
        raise SapwoodError(
            "tool_choice must be 'none', 'auto', 'required' or "
            "{'type': 'function', 'function': ...}"
        )
    named = [tool for tool in tools if tool.name == name]
    if not named:
        raise SapwoodError(f"tool_choice names {name[:64]!r}, which is none of the tools")
    return "named", named


# ------------------------------------------------------------------------------------- grammar
def output_rules(
    form: Grammar | None,  # of the response format
    choice: str,
    offered: Sequence[Tool],
    *,
    parallel: bool = True,  # several calls in one output
) -> tuple[Grammar | None, Constraint]:
    """The grammar of the output (None is free text), and where it constrains calls."""
    if choice == "none" or not offered:
        return form, "none"
    calls = call_rules(offered)
    many = parallel and choice != "named"
    if choice in ("required", "named"):
        return lark_of(f"start: {call_sequence(many)}", calls), "calls"
    if form is not None:
        if form.kind != "json_schema":
            raise SapwoodError(
                f"tools cannot stand beside a response_format of type {form.kind}; use one of them"
            )
        schema = inline_schema(json.loads(form.source))
        first = f"start: {call_sequence(many)} | answer\nanswer: {schema}"
        return lark_of(first, calls), "answer"
    if any(tool.strict for tool in offered):
        lines = [f"start: text_call{'*' if many else '?'} TEXT", "text_call: begin rest"]
        lines += [f'begin[lazy]: TEXT "{OPEN}"', "TEXT: /(.|\\n)*/"]
        return lark_of("\n".join(lines), calls), "text"
    return None, "none"


def call_sequence(many: bool) -> str:
    """The rule of one call, or of one or more."""
    return 'call ("\\n" call)*' if many else "call"


def call_rules(tools: Sequence[Tool]) -> str:
    """The rules of a call of each function."""
    lines = [
        f'call: "{OPEN}" rest',
        "rest: " + " | ".join(f"f{number}" for number in range(len(tools))),
    ]
    for number, tool in enumerate(tools):
        json_schema(dict(tool.schema))  # refuses one that is too large
        head = json.dumps(f'\n{{"name": {json.dumps(tool.name)}, "arguments": ')
        lines.append(f"f{number}: {head} a{number} {END}")
        lines.append(f"a{number}: {inline_schema(tool.schema)}")
    return "\n".join(lines)


def inline_schema(schema: Mapping[str, Any]) -> str:
    """A schema as the right side of a rule; its references stay inside it."""
    return "%json " + json.dumps({**schema, "x-guidance": STYLE})


def lark_of(first: str, others: str) -> Grammar:
    """A Lark grammar of these rules."""
    return lark(f"{first}\n{others}\n")


# ------------------------------------------------------------------------------------- prompt
def describe_tools(
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Any] | None,
    tool_choice: Any,
    template: str | None,
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The conversation with a description of its tools, and variables for the template."""
    choice, offered = read_choice(tool_choice, read_tools(tools))
    described = choice != "none" and bool(offered)
    if template is not None and uses(template, "tools"):
        definitions = [dict(tool.definition) for tool in offered]
        variables = {"tools": definitions} if described else {}
        return [with_parsed_arguments(message) for message in messages], variables
    plain = [without_tool_fields(message) for message in messages]
    if not described:
        return plain, {}
    text = INTRODUCTION.format(
        tools="\n".join(json.dumps(dict(tool.definition), ensure_ascii=False) for tool in offered)
    )
    text += ENDINGS.get(choice, f" Call {offered[0].name} now.")
    if plain and plain[0]["role"] == "system":
        return [{**plain[0], "content": f"{plain[0]['content']}\n\n{text}"}, *plain[1:]], {}
    return [{"role": "system", "content": text}, *plain], {}


def with_parsed_arguments(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message for a template that knows tool calls: arguments as values, not as JSON text."""
    if not message.get("tool_calls"):
        return dict(message)
    calls = [
        {**call, "function": {**call["function"], "arguments": arguments(call)}}
        for call in message["tool_calls"]
    ]
    return {**message, "tool_calls": calls}


def without_tool_fields(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message for a template that knows no tool calls: calls and results as text."""
    content = message.get("content") or ""
    if message["role"] == "tool":
        return {"role": "user", "content": f"{ANSWER_OPEN}\n{content}\n{ANSWER_CLOSE}"}
    calls = [
        json.dumps(
            {"name": call["function"]["name"], "arguments": arguments(call)}, ensure_ascii=False
        )
        for call in message.get("tool_calls") or ()
    ]
    texts = [*([content] if content else []), *(f"{OPEN}\n{call}\n{CLOSE}" for call in calls)]
    others = {name: value for name, value in message.items() if name != "tool_calls"}
    return {**others, "content": "\n".join(texts)}


def arguments(call: Mapping[str, Any]) -> Any:
    """The arguments of an earlier call as values; text that is not JSON stays text."""
    given = call["function"].get("arguments") or "{}"
    try:
        return json.loads(given) if isinstance(given, str) else given
    except (ValueError, RecursionError):
        return given

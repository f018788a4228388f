"""Tools: told to the model, held to by a grammar, and read back from its text.

A call is `<tool_call>` and JSON of a name and arguments, the form that most open models were taught. A template that
knows tools tells them in its own words; for others a short text of ours joins the system message. Under `required`, or
a named function, the grammar leaves nothing but calls; under `auto` it holds the calls of strict functions, wherever
in the text they begin.
"""

import json
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sapwood.errors import SapwoodError
from sapwood.grammar import Grammar, json_object, json_schema, lark, regex
from sapwood.grammar.compiled import STYLE
from sapwood.template import uses

OPEN, CLOSE = "<tool_call>", "</tool_call>"
END = json.dumps(f"}}\n{CLOSE}")  # of a call's JSON, as a rule writes it
NAME = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
CHOICES = ("none", "auto", "required")
ANSWER_OPEN, ANSWER_CLOSE = "<tool_response>", "</tool_response>"
INTRODUCTION = (
    "You can call these functions, given as JSON:\n{tools}\n"
    'To call one, write\n<tool_call>\n{{"name": "NAME", "arguments": ARGUMENTS}}\n</tool_call>\n'
    "with its arguments as a JSON object."
)
INSIST = {"required": " Call at least one of them now.", "auto": " Otherwise answer in words."}


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call."""

    name: str
    schema: Any  # of its arguments
    strict: bool
    shown: Mapping[str, Any]  # as the caller wrote it


@dataclass(frozen=True, slots=True)
class Called:
    """A call that the model made."""

    id: str
    name: str
    arguments: str  # JSON


# ------------------------------------------------------------------------------------- what is asked
def read_tools(tools: Sequence[Any] | None) -> list[Tool]:
    """The functions of a request."""
    found: dict[str, Tool] = {}
    for place, given in enumerate(tools or ()):
        inner = given.get("function") if isinstance(given, Mapping) else None
        if not isinstance(inner, Mapping) or given.get("type", "function") != "function":
            raise SapwoodError(f"tools[{place}] must be {{'type': 'function', 'function': {{...}}}}")
        name, schema = inner.get("name"), inner.get("parameters") or {"type": "object", "properties": {}}
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise SapwoodError(f"tools[{place}] needs a name of 1 to 64 letters, digits, '_', '-' or '.'")
        if name in found:
            raise SapwoodError(f"two tools are called {name!r}; give each a name of its own")
        if not isinstance(schema, Mapping):
            raise SapwoodError(f"the parameters of {name!r} must be a JSON schema")
        found[name] = Tool(name, schema, inner.get("strict") is True, given)
    return list(found.values())


def read_choice(choice: Any, tools: Sequence[Tool]) -> tuple[str, Sequence[Tool]]:
    """One of none, auto and required, and the functions it is about."""
    if choice is None:
        return ("auto" if tools else "none"), tools
    if isinstance(choice, str) and choice in CHOICES:
        if choice == "required" and not tools:
            raise SapwoodError("tool_choice is 'required', but there are no tools; send some")
        return choice, tools
    inner = choice.get("function") if isinstance(choice, Mapping) else None
    name = inner.get("name") if isinstance(inner, Mapping) else None
    if not isinstance(name, str) or choice.get("type", "function") != "function":
        raise SapwoodError("tool_choice must be 'none', 'auto', 'required' or {'type': 'function', 'function': ...}")
    named = [tool for tool in tools if tool.name == name]
    if not named:
        raise SapwoodError(f"tool_choice names {name[:64]!r}, which is none of the tools")
    return "named", named


def format_of(response_format: Mapping[str, Any] | None) -> Grammar | None:
    """The grammar of a response format; None is free text."""
    kind = None if response_format is None else response_format.get("type")
    if response_format is None or kind == "text":
        return None
    if kind == "json_object":
        return json_object()
    if kind == "json_schema":
        inner = response_format.get("json_schema")
        if not isinstance(inner, Mapping) or not isinstance(inner.get("schema"), Mapping):
            raise SapwoodError("response_format of type json_schema needs json_schema: {'name': ..., 'schema': {...}}")
        return json_schema(dict(inner["schema"]))
    for name, make in (("regex", regex), ("lark", lark)):
        if kind == name:
            source = response_format.get(name)
            if not isinstance(source, str) or not source:
                raise SapwoodError(f"response_format of type {name} needs a text {name!r}")
            return make(source)
    raise SapwoodError(f"response_format type {str(kind)[:40]!r} is not known; use text, json_object or json_schema")


# ------------------------------------------------------------------------------------- as a grammar
def grammar_of(
    response_format: Mapping[str, Any] | None,
    tools: Sequence[Any] | None = None,
    tool_choice: Any = None,
    *,
    parallel: bool = True,  # several calls in one answer
) -> Grammar | None:
    """What the answer must look like; None is free text."""
    form = format_of(response_format)
    choice, offered = read_choice(tool_choice, read_tools(tools))
    if choice == "none" or not offered:
        return form
    calls, several = bodies(offered), parallel and choice != "named"
    if choice in ("required", "named"):
        return rules(f"start: {repeated(several)}", calls)
    if form is not None:
        if form.kind != "json_schema":
            raise SapwoodError(f"tools cannot stand beside a response_format of type {form.kind}; use one of them")
        return rules(f"start: {repeated(several)} | answer\nanswer: {embedded(json.loads(form.source))}", calls)
    if any(tool.strict for tool in offered):
        lines = [f"start: spoken_call{'*' if several else '?'} TEXT", "spoken_call: begin rest"]
        lines += [f'begin[lazy]: TEXT "{OPEN}"', "TEXT: /(.|\\n)*/"]
        return rules("\n".join(lines), calls)
    return None


def repeated(several: bool) -> str:
    """The rule of one call, or of one after the other."""
    return 'call ("\\n" call)*' if several else "call"


def bodies(tools: Sequence[Tool]) -> str:
    """The rules of a call of each function."""
    lines = [f'call: "{OPEN}" rest', "rest: " + " | ".join(f"f{place}" for place in range(len(tools)))]
    for place, tool in enumerate(tools):
        json_schema(dict(tool.schema))  # refused by name where it is too large
        head = json.dumps(f'\n{{"name": {json.dumps(tool.name)}, "arguments": ')
        lines.append(f"f{place}: {head} a{place} {END}")
        lines.append(f"a{place}: {embedded(tool.schema)}")
    return "\n".join(lines)


def embedded(schema: Mapping[str, Any]) -> str:
    """A schema inside other rules; its references stay its own."""
    return "%json " + json.dumps({**schema, "x-guidance": STYLE})


def rules(first: str, others: str) -> Grammar:
    """A grammar of these lines."""
    return lark(f"{first}\n{others}\n")


# ------------------------------------------------------------------------------------- as a prompt
def explained(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Any] | None, tool_choice: Any, template: str | None
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The conversation with its tools told, and what the template gets to see besides."""
    choice, offered = read_choice(tool_choice, read_tools(tools))
    told = choice != "none" and bool(offered)
    if template is not None and uses(template, "tools"):
        shown = {"tools": [dict(tool.shown) for tool in offered]} if told else {}
        return [opened(message) for message in messages], shown
    spoken = [flat(message) for message in messages]
    if not told:
        return spoken, {}
    text = INTRODUCTION.format(tools="\n".join(json.dumps(dict(tool.shown), ensure_ascii=False) for tool in offered))
    text += INSIST.get(choice, f" Call {offered[0].name} now.")
    if spoken and spoken[0]["role"] == "system":
        return [{**spoken[0], "content": f"{spoken[0]['content']}\n\n{text}"}, *spoken[1:]], {}
    return [{"role": "system", "content": text}, *spoken], {}


def opened(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message for a template that knows calls: arguments as values, not as JSON in a text."""
    if not message.get("tool_calls"):
        return dict(message)
    calls = [{**call, "function": {**call["function"], "arguments": arguments(call)}} for call in message["tool_calls"]]
    return {**message, "tool_calls": calls}


def flat(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message for a template that knows no calls: what was called, and what came back, as text."""
    content = message.get("content") or ""
    if message["role"] == "tool":
        return {"role": "user", "content": f"{ANSWER_OPEN}\n{content}\n{ANSWER_CLOSE}"}
    calls = [
        json.dumps({"name": call["function"]["name"], "arguments": arguments(call)}, ensure_ascii=False)
        for call in message.get("tool_calls") or ()
    ]
    said = [*([content] if content else []), *(f"{OPEN}\n{call}\n{CLOSE}" for call in calls)]
    kept = {name: value for name, value in message.items() if name != "tool_calls"}
    return {**kept, "content": "\n".join(said)}


def arguments(call: Mapping[str, Any]) -> Any:
    """The arguments of an earlier call as values; what is no JSON stays a text."""
    given = call["function"].get("arguments") or "{}"
    try:
        return json.loads(given) if isinstance(given, str) else given
    except (ValueError, RecursionError):
        return given


# ------------------------------------------------------------------------------------- read back
def read_calls(text: str, names: Sequence[str] = ()) -> tuple[str, list[Called]]:
    """The text without its calls, and the calls; with `names`, only of these functions.

    What begins like a call and is none stays text. A text that is nothing but JSON of a call is one too: some models
    were taught so.
    """
    calls: list[Called] = []
    pieces: list[str] = []
    rest = text
    while (start := rest.find(OPEN)) >= 0:
        end = rest.find(CLOSE, start)
        stop = len(rest) if end < 0 else end
        found = parsed(rest[start + len(OPEN) : stop], names)
        after = rest[stop + len(CLOSE) :]
        pieces.append(rest[:start] if found else rest[: stop + len(CLOSE)])
        calls, rest = calls + found, after
    pieces.append(rest)
    if not calls and text.lstrip()[:1] in ("{", "["):
        calls = parsed(text, names)
        pieces = [] if calls else pieces
    content = "".join(pieces)
    return (content.strip() if calls else content), calls


def parsed(body: str, names: Sequence[str]) -> list[Called]:
    """The calls that a JSON text names; none where it is anything else."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return []
    calls = []
    for item in found if isinstance(found, list) else [found]:
        name = item.get("name") if isinstance(item, dict) else None
        given = item.get("arguments", item.get("parameters")) if isinstance(item, dict) else None
        if not isinstance(name, str) or not isinstance(given, dict) or (names and name not in names):
            return []
        calls.append(Called(f"call_{secrets.token_hex(12)}", name, json.dumps(given, ensure_ascii=False)))
    return calls

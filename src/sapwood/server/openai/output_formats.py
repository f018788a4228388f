"""Formats of the output as grammars, in the fields of OpenAI, vLLM and llama.cpp."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sapwood.errors import SapwoodError
from sapwood.server.errors import ApiError
from sapwood.structured_output import Grammar, json_object, json_schema, lark, regex
from sapwood.structured_output.gbnf import gbnf_or_lark

MOST_CHOICES = 1024
SCHEMA_MEMBERS = ("name", "description", "schema", "strict")
# type of a response format -> members beside the type
FORMAT_MEMBERS = {
    "text": (),
    "json_object": ("schema",),
    "json_schema": ("json_schema", "schema"),
    "regex": ("regex",),
    "lark": ("lark",),
}


def format_of(response_format: Mapping[str, Any] | None) -> Grammar | None:
    """The grammar of a response format; None is free text."""
    if response_format is None:
        return None
    kind = response_format.get("type")
    if not isinstance(kind, str) or kind not in FORMAT_MEMBERS:
        raise SapwoodError(
            f"response_format type {str(kind)[:40]!r} is not known; "
            "use text, json_object or json_schema"
        )
    refuse_members(response_format, ("type", *FORMAT_MEMBERS[kind]), "response_format")
    if kind == "text":
        return None
    if kind in ("json_object", "json_schema"):
        return json_format(response_format)
    source = response_format.get(kind)
    if not isinstance(source, str) or not source:
        raise SapwoodError(f"response_format of type {kind} needs a text {kind!r}")
    return regex(source) if kind == "regex" else lark(source)


def json_format(response_format: Mapping[str, Any]) -> Grammar:
    """The grammar of a JSON format; `schema` beside the type is the form of llama.cpp."""
    schema = response_format.get("schema")
    named = response_format.get("json_schema")
    if schema is None and named is None and response_format["type"] == "json_object":
        return json_object()
    if isinstance(named, Mapping):
        refuse_members(named, SCHEMA_MEMBERS, "response_format.json_schema")
        schema = named.get("schema") if schema is None else schema
    if not isinstance(schema, Mapping):
        raise SapwoodError(
            "response_format of type json_schema needs json_schema: {'name': ..., 'schema': {...}}"
        )
    return json_schema(dict(schema))


def refuse_members(given: Mapping[str, Any], known: Sequence[str], path: str) -> None:
    """Refuse a member that is not known here, unless it is null."""
    for name, value in given.items():
        if value is not None and name not in known:
            raise ApiError(
                400,
                f"unknown field {name[:64]!r} in {path}; known: {', '.join(known)}",
                f"{path}.{name}",
                "unknown_parameter",
            )


# ------------------------------------------------------------------------------- other servers
def schema_or_text(schema: Any) -> Grammar:
    """The grammar of a JSON schema, given as an object or as its JSON."""
    if isinstance(schema, str):
        try:
            schema = json.loads(schema)
        except (ValueError, RecursionError) as error:
            raise SapwoodError("the JSON schema is a text that is not JSON") from error
    return json_schema(schema)


def choice_of(texts: Any) -> Grammar:
    """The grammar of a text that is one of these."""
    right = isinstance(texts, list) and 0 < len(texts) <= MOST_CHOICES
    if not right or not all(isinstance(text, str) and text for text in texts):
        raise SapwoodError(f"a choice must be a list of 1 to {MOST_CHOICES} texts, none empty")
    return lark("start: " + " | ".join(json.dumps(text, ensure_ascii=False) for text in texts))


def structured_of(given: Mapping[str, Any]) -> Grammar | None:
    """The grammar of vLLM's `structured_outputs`, which has one member."""
    refuse_members(given, tuple(STRUCTURED), "structured_outputs")
    found = [(name, value) for name, value in given.items() if value is not None]
    if len(found) != 1:
        raise SapwoodError(f"structured_outputs needs exactly one of {', '.join(STRUCTURED)}")
    [(name, value)] = found
    return STRUCTURED[name](value)


def any_object(wanted: Any) -> Grammar | None:
    """Any JSON object, if wanted."""
    return json_object() if wanted else None


def text_of(make: Callable[[str], Grammar]) -> Callable[[Any], Grammar]:
    """A reader of grammars that are texts."""

    def read(source: Any) -> Grammar:
        if not isinstance(source, str) or not source:
            raise SapwoodError("the grammar must be a text that is not empty")
        return make(source)

    return read


Reader = Callable[[Any], Grammar | None]
STRUCTURED: dict[str, Reader] = {
    "json": schema_or_text,
    "regex": text_of(regex),
    "choice": choice_of,
    "grammar": text_of(gbnf_or_lark),
    "json_object": any_object,
}
# fields of a request that set the format of its output
FORMAT_FIELDS: dict[str, Reader] = {
    "response_format": format_of,
    "structured_outputs": structured_of,
    "guided_json": schema_or_text,
    "guided_regex": text_of(regex),
    "guided_choice": choice_of,
    "guided_grammar": text_of(gbnf_or_lark),
    "json_schema": schema_or_text,
    "grammar": text_of(gbnf_or_lark),
}

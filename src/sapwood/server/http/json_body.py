"""Decodes the body of a request; errors name the field that is wrong."""

import json
import re
from collections.abc import Iterator
from typing import Any, TypeVar

import msgspec

from sapwood.server.errors import ApiError
from sapwood.server.openai.request_schema import Bias
from sapwood.server.openai.unknown_fields import unknown_field, without_neutral

Body = TypeVar("Body", bound=msgspec.Struct)
LOCATION = re.compile(r" - at (?:`key` in )?`\$\.?([^`]*)`$")
UNKNOWN = re.compile(r"unknown field `([^`]*)`")
MISSING = re.compile(r"missing required field `([^`]*)`")


def decode(content: bytes, kind: type[Body]) -> Body:
    """The decoded body, or a 400 that names the field."""
    try:
        try:
            body = msgspec.json.decode(content, type=kind)
        except msgspec.ValidationError as error:
            if not UNKNOWN.search(str(error)):
                raise
            # unknown fields are accepted where they change nothing
            body = msgspec.convert(without_neutral(msgspec.json.decode(content), kind), kind)
        refuse_duplicates(content)
    except RecursionError as error:
        raise malformed("it nests too deeply") from error
    except UnicodeDecodeError as error:
        raise malformed(f"it is not UTF-8 at byte {first_bad_byte(content)}") from error
    except msgspec.ValidationError as error:
        raise invalid(str(error), kind, content) from error
    except msgspec.DecodeError as error:
        raise malformed(str(error)) from error
    return body


def convert(value: Any, kind: type[Body], path: str) -> Body:
    """A part of a body that is read later, as a record of its own; errors have its path."""
    try:
        return msgspec.convert(without_neutral(value, kind), kind)
    except msgspec.ValidationError as error:
        problem = invalid(str(error), kind, b"")
        param = problem.param or ""
        problem.param = f"{path}{'.' if param and not param.startswith('[') else ''}{param}"
        problem.message = problem.message.removesuffix(" in the body")
        raise problem from error


def first_bad_byte(content: bytes) -> int:
    """Index of the first byte of the body that is not UTF-8."""
    try:
        content.decode()
    except UnicodeDecodeError as error:
        return error.start
    return 0


def malformed(reason: str) -> ApiError:
    """The error of a body that is not valid JSON."""
    return ApiError(
        400,
        f"the body cannot be read ({reason}); send one JSON object in UTF-8",
        None,
        "invalid_json",
    )


# ------------------------------------------------------------------------------- repeated keys
def refuse_duplicates(content: bytes) -> None:
    """Refuse a body in which an object has a key twice; the error has the key's path."""
    repeated: list[tuple[dict[str, Any], str]] = []

    def read(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(pairs)
        if len(made) < len(pairs) and not repeated:
            repeated.append((made, first_repeated([name for name, _ in pairs])))
        return made

    # the values of numbers are not needed a second time
    body = json.loads(content, object_pairs_hook=read, parse_int=len)
    if repeated:
        [(inside, name)] = repeated
        path = next((path for path, value in paths(body) if value is inside), "")
        raise ApiError(
            400,
            f"{name!r} is given twice in one object; send it once",
            f"{path}.{name}" if path else name,
            "duplicate_key",
        )


def first_repeated(names: list[str]) -> str:
    """The first name that has occurred before."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    raise AssertionError("no name is repeated")


def paths(value: Any) -> Iterator[tuple[str, Any]]:
    """Every value inside a JSON value with its path, such as `messages[0].content`."""
    waiting = [("", value)]
    while waiting:
        path, inner = waiting.pop()
        yield path, inner
        if isinstance(inner, dict):
            waiting += [(f"{path}.{name}" if path else name, item) for name, item in inner.items()]
        elif isinstance(inner, list):
            waiting += [(f"{path}[{index}]", item) for index, item in enumerate(inner)]


# ------------------------------------------------------------------------------- wrong fields
def invalid(message: str, kind: type[msgspec.Struct], content: bytes) -> ApiError:
    """The error of a field that is missing, unknown or of the wrong type, with its path."""
    unknown = UNKNOWN.search(message)
    location = LOCATION.search(message)
    param = location.group(1) if location else None
    if unknown:
        name = unknown.group(1)
        return unknown_field(name, f"{param}.{name}" if param else name, kind)
    missing = MISSING.search(message)
    if missing:
        param = f"{param}.{missing.group(1)}" if param else missing.group(1)
        return ApiError(400, f"{param} is required", param, "invalid_value")
    if param is not None and param.removesuffix("[...]") == "logit_bias":
        param = bias_path(content)
    sentence = f"{LOCATION.sub('', message)} in {param or 'the body'}"
    if message.startswith("Invalid enum value") and param is not None:
        values = allowed(kind, param)
        if values:
            sentence += f"; send {' or '.join(values)}"
    return ApiError(400, sentence, param, "invalid_value")


def allowed(kind: type[msgspec.Struct], path: str) -> list[str]:
    """The values that a field may have, where its type lists them."""
    from msgspec import inspect

    def steps(found: Any) -> Iterator[Any]:
        yield from found.types if isinstance(found, inspect.UnionType) else [found]

    types = [inspect.type_info(kind)]
    for index, name in re.findall(r"(\[[^\]]*\])|([^.\[]+)", path):
        inner = [one for found in types for one in steps(found)]
        if index:
            types = [one.item_type for one in inner if isinstance(one, inspect.ListType)]
        else:
            structs = [one for one in inner if isinstance(one, inspect.StructType)]
            types = [
                each.type for one in structs for each in one.fields if each.encode_name == name
            ]
    found = [one for each in types for one in steps(each)]
    values = [
        value for one in found if isinstance(one, inspect.LiteralType) for value in one.values
    ]
    return [json.dumps(value) for value in values]


def bias_path(content: bytes) -> str:
    """Path of the first wrong entry of `logit_bias`; msgspec does not name the key."""
    try:
        given = msgspec.json.decode(content, type=dict[str, msgspec.Raw])["logit_bias"]
        entries = msgspec.json.decode(given, type=dict[str, msgspec.Raw])
    except msgspec.DecodeError:
        return "logit_bias"
    for token, value in entries.items():
        try:
            msgspec.json.decode(b"{%s:%s}" % (msgspec.json.encode(token), bytes(value)), type=Bias)
        except msgspec.DecodeError:
            return f"logit_bias.{token[:40]}"
    return "logit_bias"

"""From the bytes of a body to a request, refusing what JSON or the schema does not allow."""

import difflib
import json
import re
from typing import Any, TypeVar

import msgspec

from sapwood.serve.errors import ApiError
from sapwood.serve.schema import REFUSED, Common

Asked = TypeVar("Asked", bound=Common)
PLACE = re.compile(r" - at (?:`key` in )?`\$\.?([^`]*)`$")
UNKNOWN = re.compile(r"unknown field `([^`]*)`")


def decode(body: bytes, kind: type[Asked]) -> Asked:
    """The request, or a 400 that names the field."""
    try:
        asked = msgspec.json.decode(body, type=kind)
        json.loads(body, object_pairs_hook=single, parse_int=len)  # a number's value is not needed a second time
    except RecursionError as error:
        raise malformed("it nests too deeply") from error
    except UnicodeDecodeError as error:
        raise malformed(f"it is not UTF-8 at byte {error.start}") from error
    except msgspec.ValidationError as error:
        raise invalid(str(error), kind) from error
    except msgspec.DecodeError as error:
        raise malformed(str(error)) from error
    return asked


def malformed(reason: str) -> ApiError:
    """A body that is no JSON text of ours."""
    return ApiError(400, f"the body cannot be read ({reason}); send one JSON object in UTF-8", None, "invalid_json")


def single(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object, unless it says one thing twice."""
    made = dict(pairs)
    if len(made) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ApiError(400, f"{twice!r} is given twice in one object; say it once", twice, "duplicate_key")
    return made


def invalid(message: str, kind: type[Common]) -> ApiError:
    """A field that is missing, unknown or of the wrong kind, with its place."""
    unknown = UNKNOWN.search(message)
    place = PLACE.search(message)
    param = place.group(1) if place else None
    if unknown:
        name = unknown.group(1)
        return unknown_field(name, f"{param}.{name}" if param else name, kind)
    missing = re.search(r"missing required field `([^`]*)`", message)
    if missing:
        param = f"{param}.{missing.group(1)}" if param else missing.group(1)
    return ApiError(400, f"{PLACE.sub('', message)} in {param or 'the body'}", param, "invalid_value")


def unknown_field(name: str, param: str, kind: type[Common]) -> ApiError:
    """A field this server does not know, with the nearest that it does."""
    if param in REFUSED:
        return ApiError(400, f"{name} is not supported: {REFUSED[name]}", param, "unsupported_parameter")
    near = difflib.get_close_matches(name[:64], kind.__struct_fields__, 1)
    hint = f"; did you mean {near[0]!r}?" if near and param == name else "; leave it out"
    return ApiError(400, f"unknown field {name!r}{hint}", param, "unknown_parameter")

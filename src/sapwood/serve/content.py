"""Reads single fields of requests: messages, prompts of four forms, numbers that have two names."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from sapwood.errors import SapwoodError
from sapwood.serve.errors import ApiError
from sapwood.serve.schema import Message, Part

ROLES = {"developer": "system"}  # as templates call them


@contextlib.contextmanager
def blamed(param: str) -> Iterator[None]:
    """Name the field in errors that come from below."""
    try:
        yield
    except ApiError as error:
        error.param = error.param or param
        raise
    except SapwoodError as error:
        code = "context_length_exceeded" if "shorten" in str(error) else None
        raise ApiError(400, str(error), param, code) from error


def spoken(message: Message, place: int) -> dict[str, Any]:
    """A message as templates read it."""
    said: dict[str, Any] = {"role": ROLES.get(message.role, message.role)}
    said["content"] = content(message.content, f"messages[{place}].content")
    for name in ("name", "tool_call_id"):
        if (value := getattr(message, name)) is not None:
            said[name] = value
    if message.tool_calls:
        said["tool_calls"] = [msgspec.to_builtins(call) for call in message.tool_calls]
    elif message.content is None and message.refusal is None:
        raise ApiError(400, "a message needs content", f"messages[{place}].content")
    return said


def content(given: str | Sequence[Part] | None, param: str) -> str:
    """The text of a content; parts are joined, and only text is read."""
    if given is None or isinstance(given, str):
        return given or ""
    texts = []
    for place, part in enumerate(given):
        found = part.text if part.type == "text" else part.refusal if part.type == "refusal" else None
        if found is None:
            raise ApiError(
                400,
                f"a part of type {part.type[:40]!r} cannot be read here; send parts of type 'text' with a text",
                f"{param}[{place}]",
                "unsupported_content",
            )
        texts.append(found)
    return "".join(texts)


def several(prompt: str | Sequence[str | int | Sequence[int]]) -> list[str | list[int]]:
    """The prompts of a completion request: a text, texts, token ids, or lists of token ids."""
    if isinstance(prompt, str):
        return [prompt]
    kinds = {type(item) for item in prompt}
    if not prompt or len(kinds) > 1:
        raise ApiError(400, "prompt must be a text, texts, token ids, or lists of token ids", "prompt")
    if kinds == {int}:
        return [list(prompt)]  # type: ignore[arg-type]
    return list(prompt)  # type: ignore[arg-type]


def agreed(older: int | None, newer: int | None) -> int | None:
    """One number that has two names."""
    if older is not None and newer is not None and older != newer:
        raise ApiError(
            400, f"max_tokens is {older} and max_completion_tokens is {newer}; send one of them", "max_tokens"
        )
    return newer if older is None else older

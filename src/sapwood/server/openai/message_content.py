"""Reads single fields of requests: messages, contents, prompts, max_tokens."""

import contextlib
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from sapwood.errors import SapwoodError
from sapwood.server.errors import ApiError
from sapwood.server.openai.request_schema import (
    ChatRequest,
    CompletionRequest,
    ContentPart,
    Message,
    RequestFields,
)
from sapwood.tokenizer.chat_template import uses

ROLES = {"developer": "system"}  # role in the API -> role in chat templates


@contextlib.contextmanager
def param_errors(param: str) -> Iterator[None]:
    """Set the `param` of errors that are raised inside."""
    try:
        yield
    except ApiError as error:
        error.param = error.param or param
        raise
    except SapwoodError as error:
        code = "context_length_exceeded" if "shorten" in str(error) else None
        raise ApiError(400, str(error), param, code) from error


@contextlib.contextmanager
def renamed_params(names: Mapping[str, str]) -> Iterator[None]:
    """Let errors of a translated request name its own fields; `names` are by fields of chats."""
    try:
        yield
    except ApiError as error:
        field = re.match("[a-z_]*", error.param or "")
        if field is not None and field[0] in names:
            # without the rest of the path: an item has other members than a message
            error.param = names[field[0]]
        raise


def template_message(message: Message, index: int) -> dict[str, Any]:
    """A message in the form that chat templates read."""
    param = f"messages[{index}].content"
    record: dict[str, Any] = {"role": ROLES.get(message.role, message.role)}
    record["content"] = content_text(message.content, param)
    for name in ("name", "tool_call_id"):
        if (value := getattr(message, name)) is not None:
            record[name] = value
    if message.tool_calls:
        record["tool_calls"] = [msgspec.to_builtins(call) for call in message.tool_calls]
    if message.reasoning_content:
        if message.role != "assistant":
            raise ApiError(
                400,
                "reasoning_content belongs to messages of the assistant; leave it out",
                f"messages[{index}].reasoning_content",
            )
        record["reasoning_content"] = message.reasoning_content
    if not message.tool_calls and message.content is None and message.refusal is None:
        raise ApiError(400, "a message needs content", param)
    return record


def check_tool_messages(messages: Sequence[Message]) -> None:
    """Refuse a tool message that answers no call of an earlier message."""
    calls: set[str] = set()
    for index, message in enumerate(messages):
        calls.update(call.id for call in message.tool_calls or ())
        if message.role == "tool" and message.tool_call_id not in calls:
            raise ApiError(
                400,
                "a tool message must answer a tool call of an earlier assistant message; "
                "send its id as tool_call_id",
                f"messages[{index}].tool_call_id",
            )


def read_bias(given: Mapping[str, float]) -> dict[int, float]:
    """The bias of each token; two spellings of one token are refused."""
    bias: dict[int, float] = {}
    for token, value in given.items():
        if int(token) in bias:
            raise ApiError(
                400,
                f"logit_bias names token {int(token)} twice; send it once",
                f"logit_bias.{token}",
                "duplicate_key",
            )
        bias[int(token)] = value
    return bias


def content_text(given: str | Sequence[ContentPart] | None, param: str) -> str:
    """The text of a content; its parts are joined, and all must be text."""
    if given is None or isinstance(given, str):
        return given or ""
    texts = []
    for index, part in enumerate(given):
        text = {"text": part.text, "refusal": part.refusal}.get(part.type)
        if text is None:
            raise ApiError(
                400,
                f"a part of type {part.type[:40]!r} cannot be read here; "
                "send parts of type 'text' with a text",
                f"{param}[{index}]",
                "unsupported_content",
            )
        texts.append(text)
    return "".join(texts)


def read_prompts(
    prompt: str | Sequence[str | int | Sequence[int]], param: str = "prompt"
) -> list[str | list[int]]:
    """The prompts of a request: a text, texts, token ids, or lists of token ids."""
    if isinstance(prompt, str):
        return [prompt]
    kinds = {type(item) for item in prompt}
    if not prompt or len(kinds) > 1:
        raise ApiError(
            400, f"{param} must be a text, texts, token ids, or lists of token ids", param
        )
    if kinds == {int}:
        return [list(prompt)]  # type: ignore[arg-type]
    return list(prompt)  # type: ignore[arg-type]


class TokenLimit(NamedTuple):
    """The most output tokens of a request, and the field that gives them."""

    most: int | None
    param: str = "max_tokens"


def max_tokens_of(body: ChatRequest | CompletionRequest) -> TokenLimit:
    """The most output tokens, for which clients have several names."""
    newer = ["max_completion_tokens"] if isinstance(body, ChatRequest) else []
    value, param = one_of(body, ["max_tokens", *newer, "n_predict"])
    return TokenLimit(None if value == -1 else value, param)


def one_of(body: RequestFields, names: Sequence[str]) -> tuple[Any, str]:
    """Value and name of the one of these fields that is given; two must not differ."""
    given = [(getattr(body, name), name) for name in names]
    found = [(value, name) for value, name in given if value is not None]
    for value, name in found[1:]:
        first, other = found[0]
        if value != first:
            raise ApiError(
                400, f"{other} is {first} and {name} is {value}; send one of them", other
            )
    return found[0] if found else (None, names[0])


def template_variables(
    given: Mapping[str, Any] | None, reserved: Collection[str]
) -> dict[str, Any]:
    """Variables for the chat template; those that the server sets itself are refused."""
    for name in given or {}:
        if name in reserved or not name.isidentifier() or name.startswith("_"):
            raise ApiError(
                400,
                f"chat_template_kwargs cannot set {name[:64]!r}",
                f"chat_template_kwargs.{name}",
            )
    return dict(given or {})


def effort_variables(effort: str | None, template: str | None) -> dict[str, Any]:
    """Variables by which a chat template turns reasoning off, or sets how much there is."""
    if effort is None or template is None:
        return {}
    found: dict[str, Any] = {}
    if uses(template, "reasoning_effort") and effort != "none":
        found["reasoning_effort"] = effort
    if uses(template, "enable_thinking"):
        found["enable_thinking"] = effort != "none"
    return found

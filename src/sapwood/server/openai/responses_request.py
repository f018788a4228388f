"""Translates a request of the Responses API into a chat."""

from collections.abc import Mapping, Sequence
from typing import Any

from sapwood.server.errors import ApiError
from sapwood.server.http.json_body import convert
from sapwood.server.openai.message_content import content_text, renamed_params
from sapwood.server.openai.output_formats import SCHEMA_MEMBERS, refuse_members
from sapwood.server.openai.request_builder import ParsedRequest, RequestBuilder
from sapwood.server.openai.request_schema import (
    ChatRequest,
    ContentPart,
    FunctionCall,
    Message,
    ToolCall,
)
from sapwood.server.openai.responses_schema import (
    InputCall,
    InputCallOutput,
    InputMessage,
    ResponsesRequest,
)
from sapwood.server.openai.tools import FUNCTION_MEMBERS

# fields of the chat -> fields of the response
PARAMS = {
    "max_completion_tokens": "max_output_tokens",
    "messages": "input",
    "response_format": "text.format",
}
SAME_FIELDS = (
    "model",
    "parallel_tool_calls",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "stream",
    "stream_options",
    "speculation",
    "chat_template_kwargs",
    "metadata",
    "prompt_cache_key",
    "prompt_cache_retention",
    "safety_identifier",
    "service_tier",
    "store",
    "user",
)
LOGPROBS = "message.output_text.logprobs"
INCLUDES = (LOGPROBS, "reasoning.encrypted_content")
TEXT_PARTS = ("input_text", "output_text", "text")


def parse_response(
    builder: RequestBuilder, body: ResponsesRequest, tenant: str
) -> tuple[ParsedRequest, ResponsesRequest]:
    """The request as a chat for the engine, and as it came."""
    chat = chat_of(body)
    with renamed_params(PARAMS):
        return builder.chat(chat, tenant), body


def chat_of(body: ResponsesRequest) -> ChatRequest:
    """The same request as a chat."""
    unknown = [name for name in body.include or () if name not in INCLUDES]
    if unknown:
        raise ApiError(400, f"include cannot have {unknown[0]!r}; leave it out", "include")
    wants_logprobs = LOGPROBS in (body.include or ()) or bool(body.top_logprobs)
    return ChatRequest(
        **{name: getattr(body, name) for name in SAME_FIELDS},
        messages=messages_of(body),
        max_completion_tokens=body.max_output_tokens,
        logprobs=wants_logprobs or None,
        top_logprobs=body.top_logprobs if wants_logprobs else None,
        tools=None if body.tools is None else [tool_of(*entry) for entry in enumerate(body.tools)],
        tool_choice=choice_of_tool(body.tool_choice),
        reasoning_effort=effort_of(body.reasoning),
        response_format=format_of_text(body.text.format if body.text else None),
    )


def effort_of(reasoning: Mapping[str, Any] | None) -> str | None:
    """The effort of reasoning that a request asks for."""
    effort = None if reasoning is None else reasoning.get("effort")
    return effort if isinstance(effort, str) else None


# ------------------------------------------------------------------------------- input
def messages_of(body: ResponsesRequest) -> list[Message]:
    """Instructions and input as messages."""
    found = []
    if body.instructions is not None:
        found.append(Message(role="system", content=body.instructions))
    if isinstance(body.input, str):
        return [*found, Message(role="user", content=body.input)]
    if not body.input:
        raise ApiError(400, "input must be a text or a list of at least one item", "input")
    for index, item in enumerate(body.input):
        add_item(found, item, f"input[{index}]")
    return found


def add_item(messages: list[Message], item: Mapping[str, Any], path: str) -> None:
    """Add an item of the input; calls after a turn of the assistant belong to it."""
    kind = item.get("type") or "message"
    if kind == "reasoning":  # of other models; templates have no place for it
        return
    if kind == "message":
        given = convert(item, InputMessage, path)
        messages.append(Message(role=given.role, content=part_text(given.content, path, "content")))
    elif kind == "function_call":
        call = convert(item, InputCall, path)
        if not messages or messages[-1].role != "assistant":
            messages.append(Message(role="assistant"))
        made = ToolCall(call.call_id, FunctionCall(call.name, call.arguments))
        messages[-1].tool_calls = [*(messages[-1].tool_calls or ()), made]
    elif kind == "function_call_output":
        result = convert(item, InputCallOutput, path)
        text = part_text(result.output, path, "output")
        messages.append(Message(role="tool", content=text, tool_call_id=result.call_id))
    else:
        raise ApiError(
            400,
            f"an item of type {str(kind)[:40]!r} cannot be read here; send messages, "
            "function_call and function_call_output",
            f"{path}.type",
            "unsupported_content",
        )


def part_text(content: str | Sequence[ContentPart], path: str, member: str) -> str:
    """The text of a content; all its parts must be text."""
    if isinstance(content, str):
        return content
    plain = [
        ContentPart(type="text", text=part.text) if part.type in TEXT_PARTS else part
        for part in content
    ]
    return content_text(plain, f"{path}.{member}")


# ------------------------------------------------------------------------------- tools and format
def tool_of(index: int, given: Mapping[str, Any]) -> dict[str, Any]:
    """A function in the form of chats, which has its members one level deeper."""
    path = f"tools[{index}]"
    if given.get("type") != "function":
        raise ApiError(
            400,
            f"a tool of type {str(given.get('type'))[:40]!r} is not available; send functions",
            f"{path}.type",
        )
    refuse_members(given, ("type", *FUNCTION_MEMBERS), path)
    inner = {name: value for name, value in given.items() if name != "type" and value is not None}
    return {"type": "function", "function": inner}


def choice_of_tool(choice: str | Mapping[str, Any] | None) -> str | dict[str, Any] | None:
    """The choice of a tool in the form of chats."""
    if choice is None or isinstance(choice, str):
        return choice
    refuse_members(choice, ("type", "name"), "tool_choice")
    return {"type": choice.get("type"), "function": {"name": choice.get("name")}}


def format_of_text(given: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The format of the text in the form of chats, which has a schema one level deeper."""
    if given is None or given.get("type") != "json_schema":
        return None if given is None else dict(given)
    refuse_members(given, ("type", *SCHEMA_MEMBERS), "text.format")
    inner = {name: value for name, value in given.items() if name != "type"}
    return {"type": "json_schema", "json_schema": inner}

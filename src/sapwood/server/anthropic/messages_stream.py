"""Responses in the form of the Messages API: one message, or events of its content blocks."""

import json
from typing import Any

import msgspec

from sapwood.server.anthropic.errors import error_object
from sapwood.server.anthropic.messages_schema import (
    MessageObject,
    MessagesUsage,
    StopReason,
    TextContent,
    ThinkingContent,
    ToolUseContent,
)
from sapwood.server.errors import as_error
from sapwood.server.http.sse import named_event
from sapwood.server.openai.generation_response import GenerationResponse
from sapwood.server.openai.item_encoder import ItemEncoder
from sapwood.server.openai.output_stream import CallPiece
from sapwood.server.openai.response_builder import ResponseBuilder


class MessageResponse(GenerationResponse):
    """The response to a request of the Messages API."""

    def body_bytes(self) -> bytes:
        """The whole message as JSON."""
        return msgspec.json.encode(whole_message(self.builder))

    def encoder(self, *, padded: bool) -> "MessageEvents":
        """The encoder of a stream."""
        return MessageEvents(self.builder, padded=padded)


def new_message(builder: ResponseBuilder) -> MessageObject:
    """The message before its content."""
    identity = f"msg_{builder.id.partition('-')[2]}"
    usage = MessagesUsage(builder.parsed.prompt_tokens, 0)
    return MessageObject(id=identity, model=builder.model, content=[], usage=usage)


def whole_message(builder: ResponseBuilder) -> MessageObject:
    """The message with its content."""
    made = new_message(builder)
    output = builder.output(0)
    if output.reasoning:
        made.content.append(ThinkingContent(output.reasoning))
    if output.text:
        made.content.append(TextContent(output.text))
    for number, call in enumerate(output.calls):
        arguments = parsed_object(call.arguments)
        made.content.append(ToolUseContent(builder.call_id(0, number), call.name, arguments))
    made.stop_reason, made.stop_sequence = stop_of(builder, calls=bool(output.calls))
    made.usage = usage_of(builder)
    return made


def parsed_object(text: str) -> dict[str, Any]:
    """A JSON object; empty for a text that was cut."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def stop_of(builder: ResponseBuilder, *, calls: bool) -> tuple[StopReason, str | None]:
    """The reason why the output ended, and the stop sequence that ended it."""
    if builder.finish_reason(0, ()) == "length":
        return "max_tokens", None
    if builder.stop(0) is not None:
        return "stop_sequence", builder.stop(0)
    return ("tool_use" if calls else "end_turn"), None


def usage_of(builder: ResponseBuilder) -> MessagesUsage:
    """Tokens of input and output."""
    used = builder.usage()
    cached = used.prompt_tokens_details.cached_tokens
    return MessagesUsage(used.prompt_tokens - cached, used.completion_tokens, cached)


class MessageEvents(ItemEncoder):
    """Encodes the events of a message."""

    def opening(self) -> list[bytes]:
        """The message before its content."""
        return [self.event("message_start", message=new_message(self.builder))]

    def closing(self) -> list[bytes]:
        """The reason of the end, the usage, and the end."""
        reason, sequence = stop_of(self.builder, calls=bool(self.builder.output(0).calls))
        delta = {"stop_reason": reason, "stop_sequence": sequence}
        usage = usage_of(self.builder)
        return [
            self.event("message_delta", delta=delta, usage=usage),
            self.event("message_stop"),
        ]

    def empty(self) -> bytes:
        """A ping."""
        return self.event("ping")

    def failure(self, problem: Exception) -> bytes:
        """The error as the last event."""
        return named_event("error", error_object(as_error(problem)))

    # ------------------------------------------------------------------------------- blocks
    def begin_text(self) -> list[bytes]:
        """An empty text."""
        block = TextContent("")
        return [self.event("content_block_start", index=self.item, content_block=block)]

    def add_text(self, text: str) -> bytes:
        """New text."""
        delta = {"type": "text_delta", "text": text}
        return self.event("content_block_delta", index=self.item, delta=delta)

    def end_text(self) -> list[bytes]:
        """The end of the block."""
        return [self.event("content_block_stop", index=self.item)]

    def begin_reasoning(self) -> list[bytes]:
        """Empty thinking."""
        block = ThinkingContent("")
        return [self.event("content_block_start", index=self.item, content_block=block)]

    def add_reasoning(self, text: str) -> bytes:
        """New thinking."""
        delta = {"type": "thinking_delta", "thinking": text}
        return self.event("content_block_delta", index=self.item, delta=delta)

    def end_reasoning(self) -> list[bytes]:
        """The end of the block."""
        return self.end_text()

    def begin_call(self, call: CallPiece) -> list[bytes]:
        """A call without its input."""
        block = ToolUseContent(call.id, call.name, {})
        return [self.event("content_block_start", index=self.item, content_block=block)]

    def add_arguments(self, text: str) -> bytes:
        """New JSON of the input."""
        delta = {"type": "input_json_delta", "partial_json": text}
        return self.event("content_block_delta", index=self.item, delta=delta)

    def end_call(self, call: CallPiece) -> list[bytes]:
        """The end of the block."""
        return self.end_text()

"""Fields of Anthropic's Messages API: the request, and the objects of its response."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from sapwood.server.openai.request_schema import Count, Seed, Share, SpeculationParam, Word

StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]


class TextBlock(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A text in a message."""

    text: str
    type: Literal["text"] = "text"
    cache_control: dict[str, Any] | None = None  # without effect
    citations: list[Any] | None = None


class ToolUseBlock(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """An earlier call of a tool."""

    id: Word
    name: Word
    input: dict[str, Any]
    type: Literal["tool_use"]
    cache_control: dict[str, Any] | None = None
    caller: dict[str, Any] | None = None


class ToolResultBlock(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The result of a tool."""

    tool_use_id: Word
    content: str | list[dict[str, Any]] | None = None
    is_error: bool | None = None
    type: Literal["tool_result"]
    cache_control: dict[str, Any] | None = None


class AnthropicMessage(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One turn of a conversation."""

    role: Literal["user", "assistant"]
    content: str | list[dict[str, Any]]


class AnthropicTool(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A tool that the model may call."""

    name: Word
    input_schema: dict[str, Any]
    description: str | None = None
    type: Literal["custom"] | None = None
    strict: bool | None = None
    cache_control: dict[str, Any] | None = None


class AnthropicToolChoice(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The choice of a tool."""

    type: Literal["auto", "any", "tool", "none"]
    name: Word | None = None
    disable_parallel_tool_use: bool | None = None


class OutputConfig(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Format of the output."""

    format: dict[str, Any] | None = None
    effort: Word | None = None  # without effect


class MessagesRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/messages."""

    messages: Annotated[list[AnthropicMessage], Meta(min_length=1)]
    model: Word | None = None
    max_tokens: Count | None = None  # required, but not for counting tokens
    system: str | list[TextBlock] | None = None
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    temperature: Share | None = None
    top_p: Share | None = None
    top_k: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    tools: list[AnthropicTool] | None = None
    tool_choice: AnthropicToolChoice | None = None
    thinking: dict[str, Any] | None = None
    output_config: OutputConfig | None = None
    seed: Seed | None = None  # an extension, as is the next
    speculation: SpeculationParam | bool | None = None
    # without effect
    cache_control: dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None
    service_tier: Word | None = None


class TextContent(msgspec.Struct, tag_field="type", tag="text"):
    """A text in the output."""

    text: str
    citations: None = None


class ThinkingContent(msgspec.Struct, tag_field="type", tag="thinking"):
    """Reasoning before the text."""

    thinking: str
    signature: str = ""  # nothing here checks one


class ToolUseContent(msgspec.Struct, tag_field="type", tag="tool_use"):
    """A call in the output."""

    id: str
    name: str
    input: dict[str, Any]


class MessagesUsage(msgspec.Struct):
    """Tokens of input and output; those from the prefix cache are counted apart."""

    input_tokens: int
    output_tokens: int
    cache_read_input_tokens: int = 0
    cache_creation_input_tokens: int = 0


class MessageObject(msgspec.Struct, kw_only=True):
    """A message of the model."""

    id: str
    model: str
    content: list[TextContent | ThinkingContent | ToolUseContent]
    usage: MessagesUsage
    stop_reason: StopReason | None = None
    stop_sequence: str | None = None
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"


class TokenCount(msgspec.Struct):
    """The number of tokens of a request."""

    input_tokens: int


class AnthropicErrorDetail(msgspec.Struct):
    """The error object."""

    type: str
    message: str
    param: str | UnsetType = UNSET


class AnthropicErrorResponse(msgspec.Struct):
    """The body of every error response of this API."""

    error: AnthropicErrorDetail
    type: Literal["error"] = "error"

"""Fields of OpenAI's Responses API: the request, and the objects of its response."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from sapwood.server.openai.request_schema import (
    ContentPart,
    Count,
    Heat,
    Seed,
    Share,
    SpeculationParam,
    StreamOptions,
    Word,
)
from sapwood.server.openai.response_schema import TokenLogprob

Status = Literal["in_progress", "completed", "incomplete"]


class TextOptions(msgspec.Struct, forbid_unknown_fields=True):
    """Format of the text."""

    format: dict[str, Any] | None = None
    verbosity: Word | None = None  # without effect


class ResponsesRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/responses."""

    input: str | list[dict[str, Any]]
    model: Word | None = None
    instructions: str | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    text: TextOptions | None = None
    max_output_tokens: Count | None = None
    temperature: Heat | None = None
    top_p: Share | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    include: list[Word] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    truncation: Literal["disabled"] | None = None
    background: Literal[False] | None = None
    metadata: dict[str, Any] | None = None
    seed: Seed | None = None  # an extension, as are the next four
    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    min_p: Share | None = None
    speculation: SpeculationParam | bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    # without effect
    prompt_cache_key: Word | None = None
    prompt_cache_retention: Word | None = None
    reasoning: dict[str, Any] | None = None
    safety_identifier: Word | None = None
    service_tier: Word | None = None
    store: bool | None = None
    user: Word | None = None


class InputMessage(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A message in the input."""

    role: Literal["user", "assistant", "system", "developer"]
    content: str | list[ContentPart]
    type: Literal["message"] = "message"
    id: str | None = None
    status: str | None = None
    phase: str | None = None


class InputCall(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """An earlier function call in the input."""

    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str
    id: str | None = None
    status: str | None = None


class InputCallOutput(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The output of a function in the input."""

    type: Literal["function_call_output"]
    call_id: str
    output: str | list[ContentPart]
    id: str | None = None
    status: str | None = None


class OutputText(msgspec.Struct):
    """Text of a message."""

    text: str
    type: Literal["output_text"] = "output_text"
    annotations: list[Any] = []
    logprobs: list[TokenLogprob] = []


class OutputMessage(msgspec.Struct, tag_field="type", tag="message"):
    """A message in the output."""

    id: str
    status: Status
    content: list[OutputText]
    role: Literal["assistant"] = "assistant"


class OutputCall(msgspec.Struct, tag_field="type", tag="function_call"):
    """A function call in the output."""

    id: str
    call_id: str
    name: str
    arguments: str
    status: Status


class ReasoningText(msgspec.Struct):
    """Text of reasoning."""

    text: str
    type: Literal["reasoning_text"] = "reasoning_text"


class OutputReasoning(msgspec.Struct, tag_field="type", tag="reasoning"):
    """Reasoning in the output."""

    id: str
    content: list[ReasoningText]
    status: Status
    summary: list[Any] = []


OutputItem = OutputMessage | OutputCall | OutputReasoning


class CachedTokens(msgspec.Struct):
    """Input tokens from the prefix cache."""

    cached_tokens: int = 0


class ReasoningTokens(msgspec.Struct):
    """Output tokens of reasoning."""

    reasoning_tokens: int = 0


class ResponsesUsage(msgspec.Struct):
    """Tokens of input and output."""

    input_tokens: int
    output_tokens: int
    total_tokens: int
    input_tokens_details: CachedTokens
    output_tokens_details: ReasoningTokens


class IncompleteReason(msgspec.Struct):
    """The reason why an output is not complete."""

    reason: Literal["max_output_tokens"] = "max_output_tokens"


class ResponseObject(msgspec.Struct, kw_only=True):
    """A response, whole or in progress."""

    id: str
    created_at: int
    model: str
    status: Status
    output: list[OutputItem]
    usage: ResponsesUsage | None = None
    incomplete_details: IncompleteReason | None = None
    object: Literal["response"] = "response"
    error: None = None
    background: bool = False
    instructions: str | None = None
    max_output_tokens: int | None = None
    metadata: dict[str, Any] = {}
    parallel_tool_calls: bool = True
    previous_response_id: None = None
    reasoning: dict[str, Any] = {}
    store: bool = False
    temperature: float = 1.0
    text: dict[str, Any] = {}
    tool_choice: str | dict[str, Any] = "auto"
    tools: list[dict[str, Any]] = []
    top_p: float = 1.0
    truncation: str = "disabled"
    user: str | None = None

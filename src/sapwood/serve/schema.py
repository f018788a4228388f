"""The requests, field by field: what is not listed here is refused, so that no wish is silently dropped."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

Word = Annotated[str, Meta(max_length=512)]
Count = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Share = Annotated[float, Meta(ge=0, le=1)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
Heat = Annotated[float, Meta(ge=0, le=2)]
Seed = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Token = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Bias = dict[
    Annotated[str, Meta(pattern="^[0-9]{1,10}$")],
    Annotated[float, Meta(ge=-100, le=100)],
]
Stop = str | list[str]

# taken for the sake of clients that send them; they change nothing here
IGNORED = (
    "metadata",
    "prompt_cache_key",
    "prompt_cache_retention",
    "reasoning_effort",
    "safety_identifier",
    "service_tier",
    "store",
    "user",
    "verbosity",
)
# known elsewhere, with a meaning that cannot be kept here
REFUSED = {
    "audio": "answers are text",
    "chat_template": "the model's own template is used; templates never come from a request",
    "function_call": "it was replaced by tool_choice",
    "functions": "they were replaced by tools",
    "suffix": "the model continues a text, it does not fill one in",
    "web_search_options": "the server opens no connections",
}


class StreamOptions(msgspec.Struct, forbid_unknown_fields=True):
    """What a stream carries beside the text."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class Part(msgspec.Struct, kw_only=True):
    """A piece of a message's content."""

    type: Word
    text: str | None = None
    refusal: str | None = None


class Function(msgspec.Struct):
    """A call that the assistant made before."""

    name: str
    arguments: str


class ToolCall(msgspec.Struct):
    """The same, with its id."""

    id: str
    function: Function
    type: Literal["function"] = "function"


class Message(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One turn of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[Part] | None = None
    name: Word | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: Word | None = None
    refusal: str | None = None
    annotations: list[Any] | None = None  # these three come back in answers, and some clients return them
    audio: None = None
    function_call: None = None


class Prediction(msgspec.Struct):
    """What the caller expects as the answer."""

    content: str | list[Part]
    type: Literal["content"] = "content"


class Speculation(msgspec.Struct, forbid_unknown_fields=True):
    """Which recipe decodes this request, and what it must keep of plain decoding."""

    recipe: Annotated[str, Meta(min_length=1, max_length=64)] | None = None
    guarantee: Literal["text", "law", "lossy"] | None = None


class Common(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What both kinds of request share."""

    model: Word
    temperature: Heat | None = None
    top_p: Share | None = None
    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None  # 0 and -1 keep all
    min_p: Share | None = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Meta(ge=0.01, le=100)] | None = None
    logit_bias: Bias | None = None
    max_tokens: Count | None = None
    min_tokens: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    n: Count | None = None
    seed: Seed | None = None
    stop: Stop | None = None
    stop_token_ids: list[Token] | None = None
    ignore_eos: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    prediction: Prediction | None = None
    speculation: Speculation | bool | None = None
    response_format: dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None
    prompt_cache_key: Word | None = None
    prompt_cache_retention: Word | None = None
    safety_identifier: Word | None = None
    service_tier: Word | None = None
    store: bool | None = None
    user: Word | None = None


class ChatRequest(Common):
    """POST /v1/chat/completions."""

    messages: Annotated[list[Message], Meta(min_length=1)]
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    modalities: list[Word] | None = None
    reasoning_effort: Word | None = None
    verbosity: Word | None = None


class CompletionRequest(Common):
    """POST /v1/completions."""

    prompt: str | list[str | int | list[int]]
    best_of: Count | None = None
    echo: bool | None = None
    logprobs: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None

"""Fields of API requests; any other field is refused, so that none is silently dropped."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

Word = Annotated[str, Meta(max_length=512)]
Count = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Share = Annotated[float, Meta(ge=0, le=1)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
Heat = Annotated[float, Meta(ge=0, le=2)]
Repetition = Annotated[float, Meta(ge=0.01, le=100)]
Seed = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Token = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Bias = dict[
    Annotated[str, Meta(pattern="^[0-9]{1,10}$")],
    Annotated[float, Meta(ge=-100, le=100)],
]
Stop = str | list[str]

# accepted because clients send them; without effect
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


class StreamOptions(msgspec.Struct, forbid_unknown_fields=True):
    """Options of a stream."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class ContentPart(msgspec.Struct, kw_only=True):
    """A part of a message's content."""

    type: Word
    text: str | None = None
    refusal: str | None = None


class FunctionCall(msgspec.Struct):
    """Name and arguments of an earlier tool call."""

    name: str
    arguments: str


class ToolCall(msgspec.Struct):
    """A tool call that the assistant made earlier."""

    id: str
    function: FunctionCall
    type: Literal["function"] = "function"


class Message(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One turn of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[ContentPart] | None = None
    name: Word | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: Word | None = None
    refusal: str | None = None
    reasoning_content: str | None = None  # of an earlier answer, for templates that keep it
    # these three are fields of responses, and some clients send them back
    annotations: list[Any] | None = None
    audio: None = None
    function_call: None = None


class PredictionParam(msgspec.Struct, forbid_unknown_fields=True):
    """Output that the caller expects."""

    content: str | list[ContentPart]
    type: Literal["content"] = "content"


class SpeculationParam(msgspec.Struct, forbid_unknown_fields=True):
    """Recipe of a request, and the guarantee that it must have."""

    recipe: Annotated[str, Meta(min_length=1, max_length=64)] | None = None
    guarantee: Literal["text", "law", "lossy"] | None = None


class RequestFields(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Fields that chat and text completions share."""

    model: Word | None = None  # the served one
    temperature: Heat | None = None
    top_p: Share | None = None
    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None  # 0 and -1 keep all
    min_p: Share | None = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    repetition_penalty: Repetition | None = None
    repeat_penalty: Repetition | None = None  # the name of llama.cpp
    logit_bias: Bias | None = None
    min_tokens: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    n: Count | None = None
    seed: Seed | None = None
    stop: Stop | None = None
    stop_token_ids: list[Token] | None = None
    ignore_eos: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    prediction: PredictionParam | None = None
    speculation: SpeculationParam | bool | None = None
    n_predict: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None  # max_tokens; -1: no limit
    response_format: dict[str, Any] | None = None
    structured_outputs: dict[str, Any] | None = None  # of vLLM, as are the guided fields
    guided_json: dict[str, Any] | str | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None  # GBNF or Lark
    json_schema: dict[str, Any] | None = None  # of llama.cpp
    grammar: str | None = None  # GBNF or Lark
    metadata: dict[str, Any] | None = None
    prompt_cache_key: Word | None = None
    prompt_cache_retention: Word | None = None
    safety_identifier: Word | None = None
    service_tier: Word | None = None
    store: bool | None = None
    user: Word | None = None


class ChatRequest(RequestFields):
    """POST /v1/chat/completions."""

    messages: Annotated[list[Message], Meta(min_length=1)]
    max_tokens: Count | None = None
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None  # variables of the chat template
    modalities: list[Word] | None = None
    reasoning_effort: Word | None = None
    verbosity: Word | None = None


class CompletionRequest(RequestFields):
    """POST /v1/completions."""

    prompt: str | list[str | int | list[int]]
    max_tokens: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = (
        None  # 0: the prompt is scored only
    )
    best_of: Count | None = None
    echo: bool | None = None
    logprobs: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None

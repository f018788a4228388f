"""Fields of API responses; the OpenAPI document is made from these."""

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

Finish = Literal["stop", "length", "tool_calls"]


class PromptDetails(msgspec.Struct):
    """Details of the prompt's tokens."""

    cached_tokens: int = 0  # from the prefix cache of the same key


class CompletionDetails(msgspec.Struct):
    """Details of the output's tokens."""

    accepted_prediction_tokens: int = 0
    rejected_prediction_tokens: int = 0
    reasoning_tokens: int = 0


class Usage(msgspec.Struct):
    """Tokens of prompt and output."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails


class SpeculationUsage(msgspec.Struct):
    """Statistics of speculation, over all choices."""

    recipe: str
    guarantee: str
    passes: int  # of the target, the prompt's not counted
    tokens_per_pass: float
    drafted: int
    accepted: int
    waste: float  # share of drafted tokens that did not become output


class TopLogprob(msgspec.Struct):
    """An alternative token with its log-probability."""

    token: str
    logprob: float
    bytes: list[int] | None


class TokenLogprob(msgspec.Struct):
    """An output token with its log-probability and its alternatives."""

    token: str
    logprob: float
    bytes: list[int] | None
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct):
    """Log-probabilities of a message's tokens."""

    content: list[TokenLogprob]
    refusal: None = None


class TextLogprobs(msgspec.Struct):
    """Log-probabilities of a text's tokens, in columns."""

    tokens: list[str]
    token_logprobs: list[float | None]  # None for the first token of an echoed prompt
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CalledFunction(msgspec.Struct):
    """Name and arguments of a call."""

    name: str
    arguments: str  # JSON


class ToolCallReply(msgspec.Struct):
    """A tool call of the assistant."""

    id: str
    function: CalledFunction
    type: Literal["function"] = "function"


class FunctionDelta(msgspec.Struct):
    """Part of a call that a chunk adds; the first has the name."""

    arguments: str
    name: str | UnsetType = UNSET


class ToolCallDelta(msgspec.Struct):
    """Part of a tool call that a chunk adds; the first has id and type."""

    index: int
    function: FunctionDelta
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET


class AssistantMessage(msgspec.Struct):
    """The assistant's turn."""

    content: str | None
    role: Literal["assistant"] = "assistant"
    refusal: None = None
    tool_calls: list[ToolCallReply] | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET  # of models that write reasoning before their text


class ChatChoice(msgspec.Struct):
    """One choice of a chat completion."""

    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: Finish


class Delta(msgspec.Struct):
    """Part of a message that a chunk adds."""

    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET
    tool_calls: list[ToolCallDelta] | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET


class ChunkChoice(msgspec.Struct):
    """Part of a choice that a chunk adds."""

    index: int
    delta: Delta
    logprobs: ChatLogprobs | None = None
    finish_reason: Finish | None = None


class TextChoice(msgspec.Struct):
    """One choice of a text completion, or the part that a chunk adds."""

    index: int
    text: str
    logprobs: TextLogprobs | None = None
    finish_reason: Finish | None = None


class ResponseHead(msgspec.Struct, kw_only=True):
    """Fields of all completions and chunks."""

    id: str
    object: str
    created: int  # seconds since 1970
    model: str
    system_fingerprint: str


class ChatCompletion(ResponseHead, kw_only=True):
    """A chat completion."""

    choices: list[ChatChoice]
    usage: Usage
    speculation: SpeculationUsage | UnsetType = UNSET


class ChatChunk(ResponseHead, kw_only=True):
    """One event of a chat stream."""

    choices: list[ChunkChoice]
    usage: Usage | UnsetType | None = UNSET
    speculation: SpeculationUsage | UnsetType = UNSET
    obfuscation: str | UnsetType = UNSET


class TextCompletion(ResponseHead, kw_only=True):
    """A text completion, or one event of its stream."""

    choices: list[TextChoice]
    usage: Usage | UnsetType | None = UNSET
    speculation: SpeculationUsage | UnsetType = UNSET
    obfuscation: str | UnsetType = UNSET


class ModelCard(msgspec.Struct):
    """The served model."""

    id: str
    created: int
    max_model_len: int | None  # None for a model that has not been loaded yet
    object: Literal["model"] = "model"
    owned_by: str = "sapwood"


class ModelList(msgspec.Struct):
    """The list of models."""

    data: list[ModelCard]
    object: Literal["list"] = "list"


class ErrorDetail(msgspec.Struct):
    """The error object."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorResponse(msgspec.Struct):
    """The body of every error response."""

    error: ErrorDetail


class Health(msgspec.Struct):
    """Health of the server."""

    status: Literal["ok", "starting", "draining"]


class Version(msgspec.Struct):
    """Version of sapwood."""

    version: str

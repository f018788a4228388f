"""The answers, field by field, as the OpenAI API has them; the document of the API is made from these."""

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

Finish = Literal["stop", "length", "tool_calls"]


class PromptDetails(msgspec.Struct):
    """What was special about the prompt."""

    cached_tokens: int = 0  # known from earlier requests of the same key


class CompletionDetails(msgspec.Struct):
    """What was special about the answer."""

    accepted_prediction_tokens: int = 0
    rejected_prediction_tokens: int = 0
    reasoning_tokens: int = 0


class Usage(msgspec.Struct):
    """Tokens read and written."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails


class Told(msgspec.Struct):
    """What speculation did, over all choices."""

    recipe: str
    guarantee: str
    passes: int  # of the target, the prompt's not counted
    tokens_per_pass: float
    drafted: int
    accepted: int
    waste: float  # share of drafted tokens that did not become output


class Top(msgspec.Struct):
    """A likely token."""

    token: str
    logprob: float
    bytes: list[int] | None


class TokenLogprob(msgspec.Struct):
    """A token that was said, and what else was likely there."""

    token: str
    logprob: float
    bytes: list[int] | None
    top_logprobs: list[Top]


class ChatLogprobs(msgspec.Struct):
    """Of the tokens of a message."""

    content: list[TokenLogprob]
    refusal: None = None


class TextLogprobs(msgspec.Struct):
    """Of the tokens of a text, in columns."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class CalledFunction(msgspec.Struct):
    """Name and arguments of a call."""

    name: str
    arguments: str  # JSON


class Call(msgspec.Struct):
    """A call that the assistant asks for."""

    id: str
    function: CalledFunction
    type: Literal["function"] = "function"
    index: int | UnsetType = UNSET  # in streams


class Reply(msgspec.Struct):
    """The assistant's turn."""

    content: str | None
    role: Literal["assistant"] = "assistant"
    refusal: None = None
    tool_calls: list[Call] | UnsetType = UNSET


class ChatChoice(msgspec.Struct):
    """One of n answers."""

    index: int
    message: Reply
    logprobs: ChatLogprobs | None
    finish_reason: Finish


class Delta(msgspec.Struct):
    """What a chunk adds to a message."""

    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET
    tool_calls: list[Call] | UnsetType = UNSET


class ChunkChoice(msgspec.Struct):
    """What a chunk adds to one of n answers."""

    index: int
    delta: Delta
    logprobs: ChatLogprobs | None = None
    finish_reason: Finish | None = None


class TextChoice(msgspec.Struct):
    """One of n continuations, or a piece of it."""

    index: int
    text: str
    logprobs: TextLogprobs | None = None
    finish_reason: Finish | None = None


class Head(msgspec.Struct, kw_only=True):
    """What all answers begin with."""

    id: str
    object: str
    created: int  # seconds since 1970
    model: str
    system_fingerprint: str


class ChatCompletion(Head, kw_only=True):
    """A whole chat answer."""

    choices: list[ChatChoice]
    usage: Usage
    speculation: Told | UnsetType = UNSET


class ChatChunk(Head, kw_only=True):
    """One event of a chat stream."""

    choices: list[ChunkChoice]
    usage: Usage | UnsetType | None = UNSET
    speculation: Told | UnsetType = UNSET
    obfuscation: str | UnsetType = UNSET


class TextCompletion(Head, kw_only=True):
    """A whole text answer, or one event of its stream."""

    choices: list[TextChoice]
    usage: Usage | UnsetType | None = UNSET
    speculation: Told | UnsetType = UNSET
    obfuscation: str | UnsetType = UNSET


class Model(msgspec.Struct):
    """The served model."""

    id: str
    created: int
    max_model_len: int
    object: Literal["model"] = "model"
    owned_by: str = "sapwood"


class Models(msgspec.Struct):
    """All models: there is one."""

    data: list[Model]
    object: Literal["list"] = "list"


class Problem(msgspec.Struct):
    """What went wrong."""

    message: str
    type: str
    param: str | None
    code: str | None


class Failure(msgspec.Struct):
    """Every answer that is no success."""

    error: Problem


class Health(msgspec.Struct):
    """Whether the server takes requests."""

    status: Literal["ok", "draining"]


class Version(msgspec.Struct):
    """Which sapwood this is."""

    version: str

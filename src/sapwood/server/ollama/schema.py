"""Fields of the Ollama API: the requests, and the objects of their responses."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from sapwood.server.openai.request_schema import Count, Heat, Penalty, Repetition, Seed, Share, Word
from sapwood.server.openai.response_schema import TokenLogprob

LATEST = ":latest"  # the tag that clients add to a name without one


class OllamaOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """`options` of a request."""

    num_predict: Annotated[int, Meta(ge=-2, le=2**31 - 1)] | None = None  # 0 and below: no limit
    temperature: Heat | None = None
    top_p: Share | None = None
    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    min_p: Share | None = None
    seed: Seed | None = None  # -1: a random one
    stop: str | list[str] | None = None
    repeat_penalty: Repetition | None = None
    repeat_last_n: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None  # -1 beside a penalty
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    # settings of the server decide what these do elsewhere
    num_ctx: int | None = None  # without effect
    num_keep: int | None = None  # without effect
    num_batch: int | None = None  # without effect
    num_gpu: int | None = None  # without effect
    num_thread: int | None = None  # without effect
    main_gpu: int | None = None  # without effect
    low_vram: bool | None = None  # without effect
    f16_kv: bool | None = None  # without effect
    numa: bool | None = None  # without effect
    use_mmap: bool | None = None  # without effect
    use_mlock: bool | None = None  # without effect


# options that are taken and change nothing
UNUSED_OPTIONS = OllamaOptions.__struct_fields__[OllamaOptions.__struct_fields__.index("num_ctx") :]


class OllamaFunction(msgspec.Struct, kw_only=True):
    """A called function; its arguments are an object, not JSON in a text."""

    name: Word
    arguments: dict[str, Any]
    index: int | UnsetType = UNSET


class OllamaCall(msgspec.Struct, kw_only=True):
    """A tool call, of an earlier message or of a response."""

    function: OllamaFunction
    id: Word | UnsetType = UNSET


class OllamaMessage(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One turn of a conversation."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str | None = None
    thinking: str | None = None  # of an earlier answer, for templates that keep it
    tool_calls: list[OllamaCall] | None = None
    tool_name: Word | None = None
    tool_call_id: Word | None = None
    images: Annotated[list[Any], Meta(max_length=0)] | None = None  # refused unless empty


class OllamaFields(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Fields that chats and prompts share."""

    model: Word | None = None  # the served one
    stream: bool | None = None  # true where it is not named
    format: Literal["", "json"] | dict[str, Any] | None = None  # a JSON schema as an object
    options: dict[str, Any] | None = None
    think: bool | Literal["low", "medium", "high"] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    keep_alive: str | float | None = None  # without effect


class OllamaChatRequest(OllamaFields):
    """POST /api/chat."""

    messages: list[OllamaMessage] | None = None  # none: nothing is generated
    tools: list[dict[str, Any]] | None = None


class OllamaGenerateRequest(OllamaFields):
    """POST /api/generate."""

    prompt: str | None = None  # none: nothing is generated
    system: str | None = None
    raw: bool | None = None  # true: the prompt is continued as it is
    suffix: Literal[""] | None = None  # refused unless empty
    template: Literal[""] | None = None  # refused unless empty
    images: Annotated[list[Any], Meta(max_length=0)] | None = None  # refused unless empty
    context: Annotated[list[Any], Meta(max_length=0)] | None = None  # refused unless empty


class OllamaEmbedRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """POST /api/embed."""

    input: str | list[str]
    model: Word | None = None
    truncate: bool | None = None  # without effect: a text that is too long is refused
    dimensions: Count | None = None
    options: dict[str, Any] | None = None  # without effect
    keep_alive: str | float | None = None  # without effect


class OllamaShowRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """POST /api/show."""

    model: Word | None = None
    name: Word | None = None  # the older name of `model`
    verbose: bool | None = None  # without effect
    system: Literal[""] | None = None
    template: Literal[""] | None = None
    options: dict[str, Any] | None = None


class OllamaReply(msgspec.Struct, kw_only=True):
    """The assistant's turn, or what a line of a stream adds to it."""

    content: str
    role: Literal["assistant"] = "assistant"
    thinking: str | UnsetType = UNSET
    tool_calls: list[OllamaCall] | UnsetType = UNSET


class OllamaLine(msgspec.Struct, kw_only=True):
    """Fields of all lines; the last has the reason of the end, counts and durations."""

    model: str
    created_at: str
    done: bool = False
    logprobs: list[TokenLogprob] | UnsetType = UNSET
    done_reason: Literal["stop", "length", "load"] | UnsetType = UNSET
    total_duration: int | UnsetType = UNSET  # nanoseconds, as are the other durations
    load_duration: int | UnsetType = UNSET
    prompt_eval_count: int | UnsetType = UNSET
    prompt_eval_duration: int | UnsetType = UNSET
    eval_count: int | UnsetType = UNSET
    eval_duration: int | UnsetType = UNSET


class OllamaChatLine(OllamaLine, kw_only=True):
    """The response to a chat, or a line of its stream."""

    message: OllamaReply


class OllamaTextLine(OllamaLine, kw_only=True):
    """The response to a prompt, or a line of its stream."""

    response: str
    thinking: str | UnsetType = UNSET


class OllamaEmbeddings(msgspec.Struct, kw_only=True):
    """The vectors of texts."""

    model: str
    embeddings: list[list[float]]
    total_duration: int
    prompt_eval_count: int
    load_duration: int = 0


class OllamaDetails(msgspec.Struct, kw_only=True):
    """Facts of a model; empty where they are not known."""

    format: str
    family: str
    families: list[str]
    parent_model: str = ""
    parameter_size: str = ""
    quantization_level: str = ""


class OllamaModel(msgspec.Struct, kw_only=True):
    """A model in a list; those that are loaded have their context."""

    name: str
    model: str
    modified_at: str
    size: int  # bytes
    digest: str
    details: OllamaDetails
    context_length: int | UnsetType = UNSET
    size_vram: int | UnsetType = UNSET


class OllamaModels(msgspec.Struct):
    """A list of models."""

    models: list[OllamaModel]


class OllamaShown(msgspec.Struct, kw_only=True):
    """A model in detail."""

    details: OllamaDetails
    model_info: dict[str, Any]
    capabilities: list[str]
    modified_at: str
    template: str = ""
    modelfile: str = ""
    parameters: str = ""


class OllamaVersion(msgspec.Struct):
    """The version of the server."""

    version: str


class OllamaError(msgspec.Struct):
    """The body of every error response of this API, and the last line of a stream that failed."""

    error: str

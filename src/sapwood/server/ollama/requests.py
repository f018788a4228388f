"""Translates requests of the Ollama API into those of the OpenAI API."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from msgspec import UNSET

from sapwood.server.errors import ApiError
from sapwood.server.http.json_body import convert
from sapwood.server.ollama.errors import own_names
from sapwood.server.ollama.schema import (
    LATEST,
    UNUSED_OPTIONS,
    OllamaCall,
    OllamaChatRequest,
    OllamaEmbedRequest,
    OllamaFields,
    OllamaGenerateRequest,
    OllamaMessage,
    OllamaOptions,
)
from sapwood.server.openai.embeddings import EmbeddingBuilder, EmbeddingRequest, ParsedEmbeddings
from sapwood.server.openai.model_formats import reasoning_format
from sapwood.server.openai.request_builder import ParsedRequest, RequestBuilder
from sapwood.server.openai.request_schema import (
    ChatRequest,
    CompletionRequest,
    FunctionCall,
    Message,
    ToolCall,
)
from sapwood.tokenizer.chat_template import uses


def served_name(name: str | None, served: str) -> str | None:
    """The name of a model without the tag that clients add, unless it is served with it."""
    return name if name is None or name == served else name.removesuffix(LATEST)


def parse_chat(
    builder: RequestBuilder, body: OllamaChatRequest, tenant: str
) -> ParsedRequest | None:
    """A chat for the engine; None for one without messages, which asks for the model alone."""
    with client_names():
        options, fields = shared_fields(builder, body)
        if not body.messages:
            return None
        chat = ChatRequest(
            **fields,
            messages=chat_messages(body.messages),
            tools=body.tools or None,
            logprobs=body.logprobs,
            top_logprobs=body.top_logprobs,
            reasoning_effort=effort_of(builder, body.think),
        )
        return with_ignored(builder.chat(chat, tenant), body, options)


def parse_generate(
    builder: RequestBuilder, body: OllamaGenerateRequest, tenant: str
) -> ParsedRequest | None:
    """A prompt for the engine, as a turn of the user unless it is raw; None without a prompt."""
    with client_names():
        options, fields = shared_fields(builder, body)
        if not body.prompt:
            return None
        if body.raw or builder.prompts.tokenizer.template is None:
            return with_ignored(raw_prompt(builder, body, fields, tenant), body, options)
        said = [Message(role="user", content=body.prompt)]
        if body.system:
            said.insert(0, Message(role="system", content=body.system))
        chat = ChatRequest(
            **fields,
            messages=said,
            logprobs=body.logprobs,
            top_logprobs=body.top_logprobs,
            reasoning_effort=effort_of(builder, body.think),
        )
        return with_ignored(builder.chat(chat, tenant), body, options)


def raw_prompt(
    builder: RequestBuilder, body: OllamaGenerateRequest, fields: dict[str, Any], tenant: str
) -> ParsedRequest:
    """A prompt that is continued as it is."""
    if body.system:
        raise ApiError(400, "a raw prompt has no system message; leave it out", "system")
    if body.think:
        raise ApiError(400, "a raw prompt has no thinking apart from the text", "think")
    if body.top_logprobs is not None and not body.logprobs:
        raise ApiError(400, "top_logprobs needs logprobs: true", "top_logprobs")
    top = (body.top_logprobs or 0) if body.logprobs else None
    unlimited = {} if fields["n_predict"] is not None else {"n_predict": -1}
    text = CompletionRequest(**{**fields, **unlimited}, prompt=body.prompt or "", logprobs=top)
    return builder.completion(text, tenant)


def parse_embed(
    builder: EmbeddingBuilder, body: OllamaEmbedRequest, tenant: str
) -> ParsedEmbeddings:
    """Texts for the engine."""
    given = EmbeddingRequest(
        input=body.input if isinstance(body.input, str) else [*body.input],
        model=served_name(body.model, builder.builder.name),
        dimensions=body.dimensions,
    )
    return builder.parse(given, tenant)


@contextmanager
def client_names() -> Iterator[None]:
    """Let errors name the fields of this API."""
    try:
        yield
    except ApiError as error:
        own_names(error)
        raise


# ------------------------------------------------------------------------------- fields
def shared_fields(
    builder: RequestBuilder, body: OllamaFields
) -> tuple[OllamaOptions, dict[str, Any]]:
    """The options, and the fields that all translated requests have."""
    options = convert(body.options or {}, OllamaOptions, "options")
    check_window(options)
    limit = options.num_predict
    return options, {
        "model": served_name(body.model, builder.name),
        "stream": body.stream is not False,
        "response_format": format_of_body(body),
        "n_predict": None if limit is None or limit <= 0 else limit,
        "temperature": options.temperature,
        "top_p": options.top_p,
        "top_k": options.top_k,
        "min_p": options.min_p,
        "seed": None if options.seed == -1 else options.seed,
        "stop": options.stop or None,
        "repeat_penalty": options.repeat_penalty,
        "presence_penalty": options.presence_penalty,
        "frequency_penalty": options.frequency_penalty,
    }


def check_window(options: OllamaOptions) -> None:
    """Refuse a window of the repetition penalty, which counts the whole text here."""
    window = options.repeat_last_n
    if window not in (None, -1) and options.repeat_penalty not in (None, 1):
        raise ApiError(
            400,
            "repeat_last_n is not supported: the repetition penalty counts the whole text; send -1",
            "options.repeat_last_n",
            "unsupported_parameter",
        )


def format_of_body(body: OllamaFields) -> dict[str, Any] | None:
    """The response format: none, any JSON object, or a schema."""
    if not body.format:
        return None
    if isinstance(body.format, str):
        return {"type": "json_object"}
    return {"type": "json_schema", "json_schema": {"name": "format", "schema": body.format}}


def effort_of(builder: RequestBuilder, think: bool | str | None) -> str | None:
    """Reasoning effort before the answer; None leaves it to the template."""
    template = builder.prompts.tokenizer.template
    if think and reasoning_format(template) is None:
        raise ApiError(400, "this model has no thinking apart from the text; leave it out", "think")
    if think is False:
        return "none" if template is not None and uses(template, "enable_thinking") else None
    return "medium" if think is True else think or None


def with_ignored(
    parsed: ParsedRequest, body: OllamaFields, options: OllamaOptions
) -> ParsedRequest:
    """The same request with the names of fields that were sent without effect."""
    unused = [name for name in UNUSED_OPTIONS if getattr(options, name) is not None]
    kept = ["keep_alive"] if body.keep_alive is not None else []
    names = (*parsed.ignored, *kept, *(f"options.{name}" for name in unused))
    return replace(parsed, ignored=names)


# ------------------------------------------------------------------------------- messages
def chat_messages(given: Sequence[OllamaMessage]) -> list[Message]:
    """The turns; calls get ids, by which results belong to them."""
    open_calls: list[ToolCall] = []  # without a result so far
    found = []
    for index, message in enumerate(given):
        calls = [call_of(call, index, place) for place, call in enumerate(message.tool_calls or ())]
        open_calls += calls
        answered = answered_call(message, open_calls) if message.role == "tool" else None
        if answered is not None:
            open_calls.remove(answered)
        found.append(
            Message(
                role=message.role,
                content=message.content,
                tool_calls=calls or None,
                tool_call_id=message.tool_call_id if answered is None else answered.id,
                reasoning_content=message.thinking or None,
            )
        )
    return found


def call_of(call: OllamaCall, index: int, place: int) -> ToolCall:
    """An earlier call, with an id where it has none."""
    arguments = json.dumps(call.function.arguments, ensure_ascii=False)
    name = f"call_{index}_{place}" if call.id is UNSET else str(call.id)
    return ToolCall(name, FunctionCall(call.function.name, arguments))


def answered_call(message: OllamaMessage, open_calls: Sequence[ToolCall]) -> ToolCall | None:
    """The call that a tool's result belongs to: by its id, by the function's name, or the next."""
    if message.tool_call_id is not None:
        fitting = [call for call in open_calls if call.id == message.tool_call_id]
    elif message.tool_name is not None:
        fitting = [call for call in open_calls if call.function.name == message.tool_name]
    else:
        fitting = [*open_calls]
    return fitting[0] if fitting else None

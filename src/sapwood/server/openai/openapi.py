"""The API as an OpenAPI 3.1 document, made from the schemas of requests and responses."""

from collections.abc import Iterable
from typing import Any

import msgspec

from sapwood import __version__
from sapwood.server.anthropic.messages_schema import (
    AnthropicErrorResponse,
    MessageObject,
    MessagesRequest,
    TokenCount,
)
from sapwood.server.ollama import schema as o
from sapwood.server.openai import response_schema as r
from sapwood.server.openai.embeddings import EmbeddingList, EmbeddingRequest
from sapwood.server.openai.request_schema import ChatRequest, CompletionRequest, SpeculationParam
from sapwood.server.openai.responses_schema import ResponseObject, ResponsesRequest
from sapwood.server.settings import ServerSettings

REFERENCE = "#/components/schemas/{name}"
ERRORS = {
    400: "the request is wrong, or asks for more than a limit",
    401: "the API key is missing or wrong",
    403: "the Host or Origin is not allowed",
    404: "there is no such model",
    408: "the request took too long",
    413: "the body is too large",
    415: "the body is not JSON",
    429: "too many requests; Retry-After says when to try again",
    431: "too many headers",
    500: "the server failed",
    503: "the server is full or shutting down; Retry-After says when to try again",
}
POST_ERRORS = (400, 401, 403, 404, 408, 413, 415, 429, 431, 500, 503)
ANTHROPIC = "AnthropicErrorResponse"
OLLAMA = "OllamaError"
GET_ERRORS = (400, 401, 403, 431, 500)


def document(
    model: str, context: int, recipes: Iterable[str], settings: ServerSettings
) -> dict[str, Any]:
    """The whole document."""
    kinds = (
        ChatRequest,
        CompletionRequest,
        r.ChatCompletion,
        r.ChatChunk,
        r.TextCompletion,
        r.ModelList,
        r.ModelCard,
        EmbeddingRequest,
        EmbeddingList,
        ResponsesRequest,
        ResponseObject,
        MessagesRequest,
        MessageObject,
        TokenCount,
        AnthropicErrorResponse,
        o.OllamaChatRequest,
        o.OllamaChatLine,
        o.OllamaGenerateRequest,
        o.OllamaTextLine,
        o.OllamaEmbedRequest,
        o.OllamaEmbeddings,
        o.OllamaShowRequest,
        o.OllamaShown,
        o.OllamaModels,
        o.OllamaVersion,
        o.OllamaError,
    )
    names = (*kinds, r.ErrorResponse, r.Health, r.Version)
    _, schemas = msgspec.json.schema_components(names, ref_template=REFERENCE)
    narrow(schemas, model, context, settings)
    speculation = schemas[SpeculationParam.__name__]["properties"]
    speculation["recipe"] = {"anyOf": [{"enum": list(recipes)}, NONE]}
    made: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {
            "title": "sapwood",
            "version": __version__,
            "description": "OpenAI-compatible, with trees.",
        },
        "paths": paths(),
        "components": {"schemas": schemas},
    }
    if settings.keys:
        made["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        made["security"] = [{"key": []}]
    return made


def narrow(schemas: dict[str, Any], model: str, context: int, settings: ServerSettings) -> None:
    """Put the limits of this server into the schemas."""
    limits = settings.limits
    for name in ("ChatRequest", "CompletionRequest"):
        fields = schemas[name]["properties"]
        fields["model"] = {"anyOf": [{"const": model}, NONE]}
        fields["n"]["anyOf"][0]["maximum"] = limits.n
        fields["max_tokens"]["anyOf"][0]["maximum"] = min(context, limits.new_tokens)
        fields["logit_bias"]["anyOf"][0]["maxProperties"] = limits.logit_bias
        text = {"type": "string", "minLength": 1, "maxLength": limits.stop_chars}
        texts = {"type": "array", "items": text, "maxItems": limits.stop}
        fields["stop"]["anyOf"] = [text, texts, {"type": "null"}]
        fields["response_format"] = format_schema()
    chat = schemas["ChatRequest"]["properties"]
    chat["top_logprobs"]["anyOf"][0]["maximum"] = limits.top_logprobs
    chat["messages"]["maxItems"] = limits.messages
    chat["max_completion_tokens"] = chat["max_tokens"]
    chat["tools"], chat["tool_choice"] = tools_schema(limits.tools), choice_schema()
    chat["modalities"] = {
        "anyOf": [{"type": "array", "items": {"const": "text"}, "maxItems": 1}, NONE]
    }
    content = {"not": {"properties": {"content": NONE}}}  # a message needs content or calls
    calls = {
        "required": ["tool_calls"],
        "properties": {"tool_calls": {"type": "array", "minItems": 1}},
    }
    schemas["Message"]["anyOf"] = [{"required": ["content"], **content}, calls]
    schemas["ContentPart"] = {"anyOf": [part_schema("text"), part_schema("refusal")]}
    schemas["CompletionRequest"]["properties"]["logprobs"]["anyOf"][0]["maximum"] = (
        limits.top_logprobs
    )
    schemas["CompletionRequest"]["properties"]["prompt"] = prompt_schema(limits.prompts)
    schemas["EmbeddingRequest"]["properties"]["input"] = prompt_schema(limits.inputs)
    for name in ONE_MODEL:
        schemas[name]["properties"]["model"] = {"anyOf": [{"const": model}, NONE]}


# requests that name the served model or none
ONE_MODEL = (
    "EmbeddingRequest",
    "ResponsesRequest",
    "MessagesRequest",
    "OllamaChatRequest",
    "OllamaGenerateRequest",
    "OllamaEmbedRequest",
    "OllamaShowRequest",
)
NONE = {"type": "null"}
JSON_TYPES = {"enum": ["null", "boolean", "integer", "number", "string", "array", "object"]}
SCHEMA = {"type": "object", "properties": {"type": JSON_TYPES}, "description": "a JSON schema"}


def record(required: list[str], **fields: Any) -> dict[str, Any]:
    """An object with these fields."""
    return {
        "type": "object",
        "properties": fields,
        "required": required,
        "additionalProperties": False,
    }


def part_schema(kind: str) -> dict[str, Any]:
    """Schema of a content part: a text under the name of its type."""
    return {
        "type": "object",
        "properties": {"type": {"const": kind}, kind: {"type": "string"}},
        "required": ["type", kind],
    }


def format_schema() -> dict[str, Any]:
    """Schema of a response format."""
    named = record(
        ["name", "schema"], name={"type": "string"}, schema=SCHEMA, strict={"type": "boolean"}
    )
    kinds = [
        record(["type"], type={"enum": ["text", "json_object"]}),
        record(["type", "json_schema"], type={"const": "json_schema"}, json_schema=named),
        record(
            ["type", "regex"], type={"const": "regex"}, regex={"type": "string", "minLength": 1}
        ),
        record(["type", "lark"], type={"const": "lark"}, lark={"type": "string", "minLength": 1}),
    ]
    return {"anyOf": [*kinds, NONE]}


def tools_schema(most: int) -> dict[str, Any]:
    """Schema of tools."""
    name = {"type": "string", "pattern": "^[a-zA-Z0-9_.-]{1,64}$"}
    function = {
        "type": "object",
        "properties": {"name": name, "description": {"type": "string"}, "parameters": SCHEMA},
        "required": ["name"],
    }
    tool = {
        "type": "object",
        "properties": {"type": {"const": "function"}, "function": function},
        "required": ["type", "function"],
    }
    return {"anyOf": [{"type": "array", "items": tool, "maxItems": most}, NONE]}


def choice_schema() -> dict[str, Any]:
    """Schema of a tool choice."""
    named = record(["name"], name={"type": "string"})
    chosen = record(["type", "function"], type={"const": "function"}, function=named)
    return {"anyOf": [{"enum": ["none", "auto", "required"]}, chosen, NONE]}


def prompt_schema(most: int) -> dict[str, Any]:
    """Schema of a prompt: a text, texts, token ids, or lists of token ids."""
    text = {"type": "string", "minLength": 1}
    ids = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
    texts = {"type": "array", "items": text, "minItems": 1, "maxItems": most}
    return {
        "anyOf": [
            text,
            texts,
            ids,
            {"type": "array", "items": ids, "minItems": 1, "maxItems": most},
        ]
    }


def paths() -> dict[str, Any]:
    """Every route with its responses."""
    named = {
        "name": "id",
        "in": "path",
        "required": True,
        "schema": {"type": "string", "minLength": 1},
    }
    health = get("Health", "Whether requests are accepted", GET_ERRORS)
    health["responses"]["503"] = response("requests are no longer accepted", "Health")
    return {
        "/v1/chat/completions": {
            "post": post(
                "ChatRequest",
                "ChatCompletion",
                "ChatChunk; [DONE] at the end",
                "Continue a conversation",
            )
        },
        "/v1/completions": {
            "post": post(
                "CompletionRequest",
                "TextCompletion",
                "TextCompletion; [DONE] at the end",
                "Continue texts",
            )
        },
        "/v1/embeddings": {"post": post("EmbeddingRequest", "EmbeddingList", "", "Embed texts")},
        "/v1/responses": {
            "post": post("ResponsesRequest", "ResponseObject", "events", "Continue a conversation")
        },
        "/v1/messages": {
            "post": post(
                "MessagesRequest", "MessageObject", "events", "Continue a conversation", ANTHROPIC
            )
        },
        "/v1/messages/count_tokens": {
            "post": post("MessagesRequest", "TokenCount", "", "Count tokens", ANTHROPIC)
        },
        "/v1/models": {"get": get("ModelList", "The served model, as a list", GET_ERRORS)},
        "/v1/models/{id}": {
            "get": {
                **get("ModelCard", "The served model", (*GET_ERRORS, 404)),
                "parameters": [named],
            }
        },
        **ollama_paths(),
        "/health": {"get": health},
        "/health/ready": {"get": health},
        "/health/live": {"get": get("Health", "Whether the process responds", GET_ERRORS)},
        "/version": {"get": get("Version", "Version of sapwood", GET_ERRORS)},
    }


def ollama_paths() -> dict[str, Any]:
    """The routes of the Ollama API."""
    chat = post("OllamaChatRequest", "OllamaChatLine", "", "Continue a conversation", OLLAMA)
    text = post("OllamaGenerateRequest", "OllamaTextLine", "", "Answer a prompt", OLLAMA)
    for route, line in ((chat, "OllamaChatLine"), (text, "OllamaTextLine")):
        lines = {"schema": {"type": "string", "description": f"lines of JSON, each a {line}"}}
        route["responses"]["200"]["content"]["application/x-ndjson"] = lines
    return {
        "/api/chat": {"post": chat},
        "/api/generate": {"post": text},
        "/api/embed": {
            "post": post("OllamaEmbedRequest", "OllamaEmbeddings", "", "Embed texts", OLLAMA)
        },
        "/api/show": {
            "post": post("OllamaShowRequest", "OllamaShown", "", "The served model", OLLAMA)
        },
        "/api/tags": {"get": get("OllamaModels", "The served models", GET_ERRORS, OLLAMA)},
        "/api/ps": {"get": get("OllamaModels", "The models in memory", GET_ERRORS, OLLAMA)},
        "/api/version": {"get": get("OllamaVersion", "Version of sapwood", GET_ERRORS, OLLAMA)},
    }


def get(
    name: str, summary: str, errors: tuple[int, ...], error: str = "ErrorResponse"
) -> dict[str, Any]:
    """A GET route."""
    success = {"200": response("success", name)}
    return {"summary": summary, "responses": {**success, **failures(errors, error)}}


def post(
    request: str, whole: str, chunk: str, summary: str, error: str = "ErrorResponse"
) -> dict[str, Any]:
    """A POST route; the response is an object or, with `stream`, events of these chunks."""
    success = response("success", whole)
    if chunk:
        success["content"]["text/event-stream"] = event_schema(chunk)
    return {
        "summary": summary,
        "requestBody": {"required": True, "content": content(request)},
        "responses": {"200": success, **failures(POST_ERRORS, error)},
    }


def event_schema(chunk: str) -> dict[str, Any]:
    """Schema of the events of a stream."""
    data = {"type": "string", "description": f"JSON of {chunk}"}
    return {"schema": {"type": "object", "properties": {"data": data}, "required": ["data"]}}


def failures(statuses: tuple[int, ...], error: str = "ErrorResponse") -> dict[str, Any]:
    """The error object under each of these statuses."""
    return {str(status): response(ERRORS[status], error) for status in statuses}


def response(description: str, name: str) -> dict[str, Any]:
    """A response that is one object."""
    return {"description": description, "content": content(name)}


def content(name: str) -> dict[str, Any]:
    """JSON content of this schema."""
    return {"application/json": {"schema": {"$ref": REFERENCE.format(name=name)}}}

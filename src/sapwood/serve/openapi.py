"""The API as an OpenAPI 3.1 document, made from the records that read requests and write answers."""

from collections.abc import Iterable
from importlib.metadata import version
from typing import Any

import msgspec

from sapwood.serve import replies as r
from sapwood.serve.schema import ChatRequest, CompletionRequest
from sapwood.serve.settings import Settings

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
ASKED = (400, 401, 403, 404, 408, 413, 415, 429, 431, 500, 503)
READ = (400, 401, 403, 431, 500)


def document(model: str, context: int, recipes: Iterable[str], settings: Settings) -> dict[str, Any]:
    """The whole document."""
    kinds = (ChatRequest, CompletionRequest, r.ChatCompletion, r.ChatChunk, r.TextCompletion, r.Models, r.Model)
    names = (*kinds, r.Failure, r.Health, r.Version)
    _, schemas = msgspec.json.schema_components(names, ref_template=REFERENCE)
    narrow(schemas, model, context, settings)
    wish = schemas["Speculation"]["properties"]
    wish["recipe"] = {"anyOf": [{"enum": list(recipes)}, NONE]}
    made: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "sapwood", "version": version("sapwood"), "description": "OpenAI-compatible, with trees."},
        "paths": paths(),
        "components": {"schemas": schemas},
    }
    if settings.keys:
        made["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        made["security"] = [{"key": []}]
    return made


def narrow(schemas: dict[str, Any], model: str, context: int, settings: Settings) -> None:
    """Write the limits of this server into the schemas."""
    limits = settings.limits
    for name in ("ChatRequest", "CompletionRequest"):
        fields = schemas[name]["properties"]
        fields["model"] = {"const": model}
        fields["n"]["anyOf"][0]["maximum"] = limits.n
        fields["max_tokens"]["anyOf"][0]["maximum"] = min(context, limits.new_tokens)
        fields["logit_bias"]["anyOf"][0]["maxProperties"] = limits.logit_bias
        text = {"type": "string", "minLength": 1, "maxLength": limits.stop_chars}
        several = {"type": "array", "items": text, "maxItems": limits.stop}
        fields["stop"]["anyOf"] = [text, several, {"type": "null"}]
        fields["response_format"] = format_schema()
    chat = schemas["ChatRequest"]["properties"]
    chat["top_logprobs"]["anyOf"][0]["maximum"] = limits.top_logprobs
    chat["messages"]["maxItems"] = limits.messages
    chat["max_completion_tokens"] = chat["max_tokens"]
    chat["tools"], chat["tool_choice"] = tools_schema(limits.tools), choice_schema()
    chat["modalities"] = {"anyOf": [{"type": "array", "items": {"const": "text"}, "maxItems": 1}, NONE]}
    said = {"not": {"properties": {"content": NONE}}}  # a message needs content or calls
    calls = {"required": ["tool_calls"], "properties": {"tool_calls": {"type": "array", "minItems": 1}}}
    schemas["Message"]["anyOf"] = [{"required": ["content"], **said}, calls]
    schemas["Part"] = {"anyOf": [part_schema("text"), part_schema("refusal")]}
    schemas["CompletionRequest"]["properties"]["logprobs"]["anyOf"][0]["maximum"] = limits.top_logprobs
    schemas["CompletionRequest"]["properties"]["prompt"] = prompt_schema(limits.prompts)


NONE = {"type": "null"}
SIMPLE = {"enum": ["null", "boolean", "integer", "number", "string", "array", "object"]}
FORM = {"type": "object", "properties": {"type": SIMPLE}, "description": "a JSON schema"}


def record(required: list[str], **fields: Any) -> dict[str, Any]:
    """An object with these fields."""
    return {"type": "object", "properties": fields, "required": required, "additionalProperties": False}


def part_schema(kind: str) -> dict[str, Any]:
    """A part of a content: a text under the name of its type."""
    return {
        "type": "object",
        "properties": {"type": {"const": kind}, kind: {"type": "string"}},
        "required": ["type", kind],
    }


def format_schema() -> dict[str, Any]:
    """What a response format may be."""
    named = record(["name", "schema"], name={"type": "string"}, schema=FORM, strict={"type": "boolean"})
    kinds = [
        record(["type"], type={"enum": ["text", "json_object"]}),
        record(["type", "json_schema"], type={"const": "json_schema"}, json_schema=named),
        record(["type", "regex"], type={"const": "regex"}, regex={"type": "string", "minLength": 1}),
        record(["type", "lark"], type={"const": "lark"}, lark={"type": "string", "minLength": 1}),
    ]
    return {"anyOf": [*kinds, NONE]}


def tools_schema(most: int) -> dict[str, Any]:
    """What tools may be."""
    name = {"type": "string", "pattern": "^[a-zA-Z0-9_.-]{1,64}$"}
    function = {
        "type": "object",
        "properties": {"name": name, "description": {"type": "string"}, "parameters": FORM},
        "required": ["name"],
    }
    tool = {
        "type": "object",
        "properties": {"type": {"const": "function"}, "function": function},
        "required": ["type", "function"],
    }
    return {"anyOf": [{"type": "array", "items": tool, "maxItems": most}, NONE]}


def choice_schema() -> dict[str, Any]:
    """What a choice of tools may be."""
    named = record(["name"], name={"type": "string"})
    chosen = record(["type", "function"], type={"const": "function"}, function=named)
    return {"anyOf": [{"enum": ["none", "auto", "required"]}, chosen, NONE]}


def prompt_schema(most: int) -> dict[str, Any]:
    """A text, texts, token ids, or lists of token ids."""
    text = {"type": "string", "minLength": 1}
    ids = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
    texts = {"type": "array", "items": text, "minItems": 1, "maxItems": most}
    return {"anyOf": [text, texts, ids, {"type": "array", "items": ids, "minItems": 1, "maxItems": most}]}


def paths() -> dict[str, Any]:
    """Every route with its answers."""
    named = {"name": "id", "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
    health = get("Health", "Whether requests are taken", READ)
    health["responses"]["503"] = answer("requests are no longer taken", "Health")
    return {
        "/v1/chat/completions": {"post": post("ChatRequest", "ChatCompletion", "ChatChunk", "Continue a conversation")},
        "/v1/completions": {"post": post("CompletionRequest", "TextCompletion", "TextCompletion", "Continue texts")},
        "/v1/models": {"get": get("Models", "The served model, as a list", READ)},
        "/v1/models/{id}": {"get": {**get("Model", "The served model", (*READ, 404)), "parameters": [named]}},
        "/health": {"get": health},
        "/health/ready": {"get": health},
        "/health/live": {"get": get("Health", "Whether the process answers", READ)},
        "/version": {"get": get("Version", "Which sapwood this is", READ)},
    }


def get(name: str, summary: str, errors: tuple[int, ...]) -> dict[str, Any]:
    """A route that is read."""
    return {"summary": summary, "responses": {"200": answer("success", name), **failures(errors)}}


def post(asked: str, whole: str, chunk: str, summary: str) -> dict[str, Any]:
    """A route that takes a request; `stream` decides between the two forms of its answer."""
    success = answer("success", whole)
    data = {"type": "string", "description": f"JSON of {chunk}; [DONE] at the end"}
    success["content"]["text/event-stream"] = {
        "schema": {"type": "object", "properties": {"data": data}, "required": ["data"]}
    }
    return {
        "summary": summary,
        "requestBody": {"required": True, "content": content(asked)},
        "responses": {"200": success, **failures(ASKED)},
    }


def failures(statuses: tuple[int, ...]) -> dict[str, Any]:
    """The error object under each of these statuses."""
    return {str(status): answer(ERRORS[status], "Failure") for status in statuses}


def answer(description: str, name: str) -> dict[str, Any]:
    """An answer that is one record."""
    return {"description": description, "content": content(name)}


def content(name: str) -> dict[str, Any]:
    """JSON of this record."""
    return {"application/json": {"schema": {"$ref": REFERENCE.format(name=name)}}}

"""Routes of the Ollama API; its other modules are imported when a first request comes."""

import time
from functools import partial
from typing import TYPE_CHECKING

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from sapwood import __version__

if TYPE_CHECKING:
    from sapwood.server.app import ApiRoutes


class OllamaRoutes:
    """The routes under /api of one model."""

    def __init__(self, api: "ApiRoutes") -> None:
        self.api = api

    async def chat(self, request: Request) -> Response:
        """POST /api/chat: the next turn of a conversation, in Ollama's API."""
        from sapwood.server.ollama import requests, schema, stream

        api = self.api
        parse = partial(requests.parse_chat, api.request_builder)
        parsed = await api.parse(request, schema.OllamaChatRequest, parse)
        if parsed is None:
            return self.nothing(chat=True)
        builder = api.builder(request, parsed)
        entry = request.scope["log_entry"]
        return stream.OllamaChatResponse(builder, api.dispatcher, api.settings, entry)

    async def generate(self, request: Request) -> Response:
        """POST /api/generate: the answer to a prompt, in Ollama's API."""
        from sapwood.server.ollama import requests, schema, stream

        api = self.api
        parse = partial(requests.parse_generate, api.request_builder)
        parsed = await api.parse(request, schema.OllamaGenerateRequest, parse)
        if parsed is None:
            return self.nothing(chat=False)
        builder = api.builder(request, parsed)
        entry = request.scope["log_entry"]
        return stream.OllamaTextResponse(builder, api.dispatcher, api.settings, entry)

    def nothing(self, *, chat: bool) -> Response:
        """The response to a request that only wants the model to be loaded, which it is."""
        from sapwood.server.ollama import schema, stream

        created = stream.timestamp(time.time())
        line: schema.OllamaLine
        if chat:
            reply = schema.OllamaReply(content="")
            line = schema.OllamaChatLine(
                model=self.api.name, created_at=created, message=reply, done=True
            )
        else:
            line = schema.OllamaTextLine(
                model=self.api.name, created_at=created, response="", done=True
            )
        line.done_reason = "load"
        return json_line(line)

    async def embed(self, request: Request) -> Response:
        """POST /api/embed: a vector for each text, in Ollama's API."""
        from sapwood.server.ollama import embeddings, requests, schema
        from sapwood.server.openai.embeddings import EmbeddingBuilder

        api = self.api
        parse = partial(requests.parse_embed, EmbeddingBuilder(api.request_builder))
        parsed = await api.parse(request, schema.OllamaEmbedRequest, parse)
        entry = request.scope["log_entry"]
        return embeddings.OllamaEmbedResponse(parsed, api.dispatcher, api.name, entry)

    async def show(self, request: Request) -> Response:
        """POST /api/show: the served model in detail."""
        from sapwood.server.errors import unknown_model
        from sapwood.server.ollama import models, schema
        from sapwood.server.ollama.requests import served_name

        def parse(body: schema.OllamaShowRequest, _: str) -> schema.OllamaShown:
            name = served_name(body.name if body.model is None else body.model, self.api.name)
            if name not in (None, self.api.name):
                raise unknown_model(str(name), self.api.name)
            return models.shown(self.api)

        return json_line(await self.api.parse(request, schema.OllamaShowRequest, parse))

    async def tags(self, request: Request) -> Response:
        """GET /api/tags: the served models."""
        from sapwood.server.ollama import models, schema

        return json_line(schema.OllamaModels([models.listed(self.api, loaded=False)]))

    async def loaded(self, request: Request) -> Response:
        """GET /api/ps: the models in memory."""
        from sapwood.server.ollama import models, schema

        return json_line(schema.OllamaModels([models.listed(self.api, loaded=True)]))

    async def version(self, request: Request) -> Response:
        """GET /api/version: the version of sapwood."""
        from sapwood.server.ollama import schema

        return json_line(schema.OllamaVersion(__version__))


def json_line(record: msgspec.Struct) -> Response:
    """A record as JSON."""
    return Response(msgspec.json.encode(record), media_type="application/json")


def ollama_routes(api: "ApiRoutes") -> list[BaseRoute]:
    """The routes under /api."""
    own = OllamaRoutes(api)
    return [
        Route("/api/chat", own.chat, methods=["POST"]),
        Route("/api/generate", own.generate, methods=["POST"]),
        Route("/api/embed", own.embed, methods=["POST"]),
        Route("/api/show", own.show, methods=["POST"]),
        Route("/api/tags", own.tags),
        Route("/api/ps", own.loaded),
        Route("/api/version", own.version),
    ]

"""Routes of the OpenAI-compatible API, and the ASGI application."""

import asyncio
import hashlib
import importlib.util
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, Router
from starlette.types import ASGIApp

from sapwood import __version__
from sapwood.server.dispatcher import Dispatcher
from sapwood.server.engine_thread import EngineThread
from sapwood.server.errors import unknown_model
from sapwood.server.http.access_log import AccessLogEntry
from sapwood.server.http.http_body import read_body
from sapwood.server.http.json_body import Body, decode
from sapwood.server.http.middleware import SecurityMiddleware, front_link
from sapwood.server.ollama.routes import ollama_routes
from sapwood.server.openai import response_schema as r
from sapwood.server.openai.generation_response import GenerationResponse, until_disconnect
from sapwood.server.openai.request_builder import ParsedRequest, RequestBuilder
from sapwood.server.openai.request_schema import ChatRequest, CompletionRequest
from sapwood.server.openai.response_builder import ResponseBuilder
from sapwood.server.settings import ServerSettings

# threads that parse requests: templates, tokenizers and grammars take long on large ones
PARSERS = 4
HEALTH = "/health"
Parsed = TypeVar("Parsed")


@dataclass
class ApiRoutes:
    """State shared by all routes, and the routes of the API."""

    engine_thread: EngineThread
    settings: ServerSettings
    name: str
    recipe: str
    created: int = field(default_factory=lambda: int(time.time()))
    # called with the log entry of every finished request
    watchers: list[Callable[[AccessLogEntry], None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        llm, info = self.engine_thread.llm, self.engine_thread.llm.target.info
        self.dispatcher = Dispatcher(self.engine_thread, self.settings.limits)
        self.request_builder = RequestBuilder(llm, self.name, self.recipe, self.settings)
        self.parsers = ThreadPoolExecutor(PARSERS, "parser")
        setup = f"{__version__} {info.model} {info.dtype} {info.device}"
        self.fingerprint = "fp_" + hashlib.sha256(setup.encode()).hexdigest()[:12]

    # ------------------------------------------------------------------------------- the API
    async def chat(self, request: Request) -> Response:
        """POST /v1/chat/completions."""
        return await self.generate(request, ChatRequest, self.request_builder.chat)

    async def completions(self, request: Request) -> Response:
        """POST /v1/completions."""
        return await self.generate(request, CompletionRequest, self.request_builder.completion)

    async def generate(
        self,
        request: Request,
        kind: type[Body],
        parse: Callable[[Body, str], ParsedRequest],
        response: type[GenerationResponse] = GenerationResponse,
    ) -> Response:
        """Parse a request; the response generates when it is sent."""
        parsed = await self.parse(request, kind, parse)
        return response(
            self.builder(request, parsed),
            self.dispatcher,
            self.settings,
            request.scope["log_entry"],
        )

    def builder(self, request: Request, parsed: ParsedRequest) -> ResponseBuilder:
        """The builder of a response, set back to where a resumed one goes on."""
        prompts = self.request_builder.prompts
        made = ResponseBuilder(parsed, prompts, self.name, self.fingerprint)
        link = front_link(request.scope)
        if link is not None:
            link.restore(made)
        return made

    async def parse(
        self, request: Request, kind: type[Body], parse: Callable[[Body, str], Parsed]
    ) -> Parsed:
        """The parsed body of a request; parsing runs in a thread of its own."""
        tenant = request.scope["log_entry"].tenant
        content = await read_body(request, self.settings.limits)
        link = front_link(request.scope)
        if link is not None:
            content = link.split(content)
        with self.dispatcher.admit(tenant):
            pass  # refused before parsing, which costs time
        parsing = asyncio.get_running_loop().run_in_executor(
            self.parsers, lambda: parse(decode(content, kind), tenant)
        )
        return await until_disconnect(request.receive, finished(parsing))

    # modules that only some clients need are imported when a first request comes
    async def embeddings(self, request: Request) -> Response:
        """POST /v1/embeddings."""
        from sapwood.server.openai import embeddings as e

        parse = e.EmbeddingBuilder(self.request_builder).parse
        parsed = await self.parse(request, e.EmbeddingRequest, parse)
        return e.EmbeddingResponse(parsed, self.dispatcher, self.name, request.scope["log_entry"])

    async def responses(self, request: Request) -> Response:
        """POST /v1/responses."""
        from sapwood.server.openai.responses_request import parse_response
        from sapwood.server.openai.responses_schema import ResponsesRequest
        from sapwood.server.openai.responses_stream import ItemResponse

        parse = partial(parse_response, self.request_builder)
        parsed, body = await self.parse(request, ResponsesRequest, parse)
        log_entry = request.scope["log_entry"]
        builder = self.builder(request, parsed)
        return ItemResponse(body, builder, self.dispatcher, self.settings, log_entry)

    async def messages(self, request: Request) -> Response:
        """POST /v1/messages."""
        from sapwood.server.anthropic.messages_request import parse_message
        from sapwood.server.anthropic.messages_schema import MessagesRequest
        from sapwood.server.anthropic.messages_stream import MessageResponse

        parse = partial(parse_message, self.request_builder)
        return await self.generate(request, MessagesRequest, parse, MessageResponse)

    async def count_tokens(self, request: Request) -> Response:
        """POST /v1/messages/count_tokens."""
        from sapwood.server.anthropic.messages_request import parse_count
        from sapwood.server.anthropic.messages_schema import MessagesRequest, TokenCount

        parse = partial(parse_count, self.request_builder)
        parsed = await self.parse(request, MessagesRequest, parse)
        return json_response(TokenCount(parsed.prompt_tokens))

    async def models(self, request: Request) -> Response:
        """GET /v1/models."""
        return json_response(r.ModelList([self.model()]))

    async def one_model(self, request: Request) -> Response:
        """GET /v1/models/{id}."""
        if request.path_params["id"] != self.name:
            raise unknown_model(request.path_params["id"], self.name)
        return json_response(self.model())

    def model(self) -> r.ModelCard:
        """The served model as /v1/models lists it."""
        return r.ModelCard(self.name, self.created, self.request_builder.info.context)

    # --------------------------------------------------------------------------- the server itself
    async def live(self, request: Request) -> Response:
        """GET /health/live: the process responds."""
        return json_response(r.Health("ok"))

    async def ready(self, request: Request) -> Response:
        """GET /health: requests are accepted."""
        draining = self.dispatcher.draining
        return json_response(r.Health("draining" if draining else "ok"), 503 if draining else 200)

    async def version(self, request: Request) -> Response:
        """GET /version."""
        return json_response(r.Version(__version__))

    async def openapi(self, request: Request) -> Response:
        """GET /openapi.json."""
        from sapwood.server.openai.openapi import document

        return json_response(
            document(
                self.name,
                self.request_builder.info.context,
                self.request_builder.allowed,
                self.settings,
            )
        )

    @cached_property
    def router(self) -> Router:
        """All routes of this model, those of the playground included."""
        routes = [*self.routes(), *ollama_routes(self)]
        if has_playground():
            from sapwood.server.playground import routes as playground

            routes += playground.routes(self)
        return Router(routes, redirect_slashes=False)

    def routes(self) -> list[BaseRoute]:
        """Every route of the API."""
        return [
            Route("/v1/chat/completions", self.chat, methods=["POST"]),
            Route("/v1/completions", self.completions, methods=["POST"]),
            Route("/v1/embeddings", self.embeddings, methods=["POST"]),
            Route("/v1/responses", self.responses, methods=["POST"]),
            Route("/v1/messages", self.messages, methods=["POST"]),
            Route("/v1/messages/count_tokens", self.count_tokens, methods=["POST"]),
            Route("/v1/models", self.models),
            Route("/v1/models/{id:path}", self.one_model),
            Route(HEALTH, self.ready),
            Route(f"{HEALTH}/ready", self.ready),
            Route(f"{HEALTH}/live", self.live),
            Route("/version", self.version),
            Route("/openapi.json", self.openapi),
        ]


async def finished(parsing: "asyncio.Future[Parsed]") -> Parsed:
    """The parsed request, as a coroutine."""
    return await parsing


def json_response(record: Any, status: int = 200) -> Response:
    """A record as JSON."""
    return Response(msgspec.json.encode(record), status, media_type="application/json")


def make(api: ApiRoutes, app: ASGIApp | None = None) -> SecurityMiddleware:
    """The ASGI application: a model's routes, or another application in front of several."""
    without_key: tuple[str, ...] = (HEALTH, f"{HEALTH}/ready", f"{HEALTH}/live")
    if has_playground():
        from sapwood.server.playground import routes as playground

        without_key += playground.WITHOUT_KEY
    return SecurityMiddleware(app or api.router, api.settings, without_key, api.watchers)


def has_playground() -> bool:
    """True where the package has its page."""
    return importlib.util.find_spec("sapwood.server.playground.routes") is not None

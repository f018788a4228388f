"""The routes: an OpenAI-compatible API over one worker."""

import asyncio
import hashlib
import importlib.util
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, Router

from sapwood.serve import replies as r
from sapwood.serve.body import read_body
from sapwood.serve.delivery import Delivery, unless_gone
from sapwood.serve.desk import Desk
from sapwood.serve.errors import unknown_model
from sapwood.serve.guard import Guard
from sapwood.serve.openapi import document
from sapwood.serve.orders import Order, Orders
from sapwood.serve.parse import Asked, decode
from sapwood.serve.schema import ChatRequest, CompletionRequest
from sapwood.serve.settings import Settings
from sapwood.serve.telling import Teller
from sapwood.serve.visit import Visit
from sapwood.serve.worker import Worker

READERS = 4  # threads that read requests: templates, tokenizers and grammars take long on large ones
HEALTH = "/health"


@dataclass
class Front:
    """What the routes share."""

    worker: Worker
    settings: Settings
    name: str
    recipe: str
    created: int = field(default_factory=lambda: int(time.time()))
    watchers: list[Callable[[Visit], None]] = field(default_factory=list)  # told of every visit when it is over

    def __post_init__(self) -> None:
        llm, info = self.worker.llm, self.worker.llm.target.info
        self.desk = Desk(self.worker, self.settings.limits)
        self.orders = Orders(llm, self.name, self.recipe, self.settings)
        self.readers = ThreadPoolExecutor(READERS, "reader")
        facts = f"{version('sapwood')} {info.model} {info.dtype} {info.device}"
        self.fingerprint = "fp_" + hashlib.sha256(facts.encode()).hexdigest()[:12]

    # ------------------------------------------------------------------------------- the API
    async def chat(self, request: Request) -> Response:
        """POST /v1/chat/completions."""
        return await self.answer(request, ChatRequest, self.orders.chat)

    async def completions(self, request: Request) -> Response:
        """POST /v1/completions."""
        return await self.answer(request, CompletionRequest, self.orders.completion)

    async def answer(self, request: Request, kind: type[Asked], order_of: Callable[[Asked, str], Order]) -> Response:
        """Read a request and hand its answer over."""
        visit = request.scope["visit"]
        body = await read_body(request, self.settings.limits)
        with self.desk.place(visit.tenant):
            pass  # refused before it costs anything
        reading = asyncio.get_running_loop().run_in_executor(
            self.readers, lambda: order_of(decode(body, kind), visit.tenant)
        )
        order = await unless_gone(request.receive, finished(reading))
        teller = Teller(order, self.orders.prompts, self.name, self.fingerprint)
        return Delivery(teller, self.desk, self.settings, visit)

    async def models(self, request: Request) -> Response:
        """GET /v1/models."""
        return told(r.Models([self.model()]))

    async def one_model(self, request: Request) -> Response:
        """GET /v1/models/{id}."""
        if request.path_params["id"] != self.name:
            raise unknown_model(request.path_params["id"], self.name)
        return told(self.model())

    def model(self) -> r.Model:
        """The model's record."""
        return r.Model(self.name, self.created, self.orders.info.context)

    # ------------------------------------------------------------------------------- the server itself
    async def live(self, request: Request) -> Response:
        """GET /health/live: the process answers."""
        return told(r.Health("ok"))

    async def ready(self, request: Request) -> Response:
        """GET /health: requests are taken."""
        draining = self.desk.draining
        return told(r.Health("draining" if draining else "ok"), 503 if draining else 200)

    async def version(self, request: Request) -> Response:
        """GET /version."""
        return told(r.Version(version("sapwood")))

    async def openapi(self, request: Request) -> Response:
        """GET /openapi.json."""
        return told(document(self.name, self.orders.info.context, self.orders.allowed, self.settings))

    def routes(self) -> list[BaseRoute]:
        """Every route of the API."""
        return [
            Route("/v1/chat/completions", self.chat, methods=["POST"]),
            Route("/v1/completions", self.completions, methods=["POST"]),
            Route("/v1/models", self.models),
            Route("/v1/models/{id:path}", self.one_model),
            Route(HEALTH, self.ready),
            Route(f"{HEALTH}/ready", self.ready),
            Route(f"{HEALTH}/live", self.live),
            Route("/version", self.version),
            Route("/openapi.json", self.openapi),
        ]


async def finished(reading: "asyncio.Future[Order]") -> Order:
    """The order, once it is read."""
    return await reading


def told(record: Any, status: int = 200) -> Response:
    """A record as JSON."""
    return Response(msgspec.json.encode(record), status, media_type="application/json")


def make(front: Front) -> Guard:
    """The ASGI application."""
    routes = front.routes()
    opened: tuple[str, ...] = (HEALTH, f"{HEALTH}/ready", f"{HEALTH}/live")
    if importlib.util.find_spec("sapwood.serve.extras") is not None:
        from sapwood.serve import extras

        routes += extras.routes(front)
        opened += extras.OPEN
    router = Router(routes, redirect_slashes=False)
    return Guard(router, front.settings, opened, front.watchers)

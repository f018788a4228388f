"""What the server offers beside the API: the playground at `/`, its data, and `/metrics`."""

import asyncio
from functools import partial
from importlib.resources import files
from typing import TYPE_CHECKING

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from sapwood.serve.delivery import Delivery
from sapwood.serve.live import Show, state
from sapwood.serve.metrics import KIND, Metrics
from sapwood.serve.schema import ChatRequest

if TYPE_CHECKING:
    from sapwood.serve.app import Front

OPEN = ("/", "/playground/files/")  # need no key: files that everybody who installs the package has
KINDS = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
FENCE = {  # the page loads nothing from elsewhere, runs nothing written into it, and stands in no frame
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "cache-control": "no-cache",
}


def page_files() -> dict[str, bytes]:
    """The files of the page by name."""
    folder = files("sapwood.serve") / "playground"
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.name.rpartition(".")[2] in KINDS}


class Extras:
    """The routes of the playground and of the metrics."""

    def __init__(self, front: "Front") -> None:
        self.front, self.metrics, self.files = front, Metrics(front.worker), page_files()
        front.watchers.append(self.metrics.visit)

    async def page(self, request: Request) -> Response:
        """GET /: the playground."""
        return self.sent("index.html")

    async def file(self, request: Request) -> Response:
        """GET /playground/files/{name}: a part of it."""
        return self.sent(request.path_params["name"])

    def sent(self, name: str) -> Response:
        """A file of the page; names are looked up, never joined to a path."""
        if name not in self.files:
            raise HTTPException(404)
        kind = KINDS[name.rpartition(".")[2]]
        return Response(self.files[name], headers=FENCE, media_type=f"{kind}; charset=utf-8")

    async def state(self, request: Request) -> Response:
        """GET /playground/state: model, machine, recipes."""
        front = self.front
        reading = partial(state, front.worker.llm, front.recipe, list(front.orders.allowed))
        known = await asyncio.get_running_loop().run_in_executor(front.readers, reading)  # the first time loads parts
        return Response(msgspec.json.encode({"name": front.name, **known}), media_type="application/json")

    async def chat(self, request: Request) -> Response:
        """POST /playground/chat: an answer round by round."""
        answer = await self.front.answer(request, ChatRequest, self.front.orders.chat)
        assert isinstance(answer, Delivery)
        return Show(answer.teller, answer.desk, answer.settings, answer.visit)

    async def numbers(self, request: Request) -> Response:
        """GET /metrics."""
        return Response(self.metrics.render(), media_type=KIND)

    def routes(self) -> list[BaseRoute]:
        """All of them."""
        return [
            Route("/", self.page),
            Route("/playground/files/{name}", self.file),
            Route("/playground/state", self.state),
            Route("/playground/chat", self.chat, methods=["POST"]),
            Route("/metrics", self.numbers),
        ]


def routes(front: "Front") -> list[BaseRoute]:
    """The playground at `/`, its data, and `/metrics`."""
    return Extras(front).routes()

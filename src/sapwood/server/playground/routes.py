"""Routes beside the API: the playground at `/`, its data, and `/metrics`."""

import asyncio
from functools import partial
from importlib.resources import files
from typing import TYPE_CHECKING

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from sapwood.server.metrics import CONTENT_TYPE, Metrics
from sapwood.server.openai.request_schema import ChatRequest
from sapwood.server.playground.live import LiveStream, state

if TYPE_CHECKING:
    from sapwood.server.app import ApiRoutes

# these paths need no key: files of the package
WITHOUT_KEY = ("/", "/playground/files/")
MEDIA_TYPES = {
    "html": "text/html",
    "css": "text/css",
    "js": "text/javascript",
    "svg": "image/svg+xml",
}
# the page loads nothing from elsewhere, runs no inline code, and cannot be framed
PAGE_HEADERS = {
    "content-security-policy": "default-src 'none'; "
    "script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "cache-control": "no-cache",
}


def page_files() -> dict[str, bytes]:
    """The files of the page by name."""
    folder = files("sapwood.server.playground") / "static"
    return {
        file.name: file.read_bytes()
        for file in folder.iterdir()
        if file.name.rpartition(".")[2] in MEDIA_TYPES
    }


class PlaygroundRoutes:
    """The routes of the playground and of the metrics."""

    def __init__(self, api: "ApiRoutes") -> None:
        self.api = api
        self.metrics = Metrics(api.engine_thread)
        self.files = page_files()
        api.watchers.append(self.metrics.watch_response)

    async def page(self, request: Request) -> Response:
        """GET /: the playground."""
        return self.file_response("index.html")

    async def file(self, request: Request) -> Response:
        """GET /playground/files/{name}: a file of the page."""
        return self.file_response(request.path_params["name"])

    def file_response(self, name: str) -> Response:
        """A file of the page; names are looked up, never joined to a path."""
        if name not in self.files:
            raise HTTPException(404)
        kind = MEDIA_TYPES[name.rpartition(".")[2]]
        return Response(self.files[name], headers=PAGE_HEADERS, media_type=f"{kind}; charset=utf-8")

    async def state(self, request: Request) -> Response:
        """GET /playground/state: model, machine, recipes."""
        api = self.api
        allowed = list(api.request_builder.allowed)
        # in a thread: the first call imports the parts of all recipes
        found = await asyncio.get_running_loop().run_in_executor(
            api.parsers, partial(state, api.engine_thread.llm, api.recipe, allowed)
        )
        return Response(
            msgspec.json.encode({"name": api.name, **found}), media_type="application/json"
        )

    async def chat(self, request: Request) -> Response:
        """POST /playground/chat: a response round by round."""
        parse = self.api.request_builder.chat
        return await self.api.generate(request, ChatRequest, parse, LiveStream)

    async def render_metrics(self, request: Request) -> Response:
        """GET /metrics."""
        return Response(self.metrics.render(), media_type=CONTENT_TYPE)

    def routes(self) -> list[BaseRoute]:
        """All routes of the playground and of the metrics."""
        return [
            Route("/", self.page),
            Route("/playground/files/{name}", self.file),
            Route("/playground/state", self.state),
            Route("/playground/chat", self.chat, methods=["POST"]),
            Route("/metrics", self.render_metrics),
        ]


def routes(api: "ApiRoutes") -> list[BaseRoute]:
    """The playground at `/`, its data, and `/metrics`."""
    return PlaygroundRoutes(api).routes()

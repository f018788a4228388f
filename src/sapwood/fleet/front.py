"""The front: the address that clients use, before several replicas on the same machine."""

import asyncio
import signal
import sys
from types import FrameType

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router

from sapwood import __version__
from sapwood.fleet.admission import Admission
from sapwood.fleet.front_metrics import CONTENT_TYPE, render
from sapwood.fleet.relay import Fleet, FrontState, PassedResponse, relayed
from sapwood.fleet.supervisor import Supervisor
from sapwood.server.app import HEALTH, json_response
from sapwood.server.http.http_body import read_body
from sapwood.server.http.middleware import SecurityMiddleware
from sapwood.server.openai import response_schema as r
from sapwood.server.playground.routes import WITHOUT_KEY
from sapwood.server.server import HttpServer, listen, log_to
from sapwood.server.settings import ServerSettings

GENERATING = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
    "/api/chat",
    "/api/generate",
)


class FrontRoutes:
    """The routes of a front."""

    def __init__(self, fleet: Fleet, settings: ServerSettings) -> None:
        self.admission = Admission(settings.limits)
        self.state = FrontState(fleet, self.admission, settings.limits)
        self.settings = settings

    async def generate(self, request: Request) -> Response:
        """POST to the API: a response that outlives its replica."""
        content = await read_body(request, self.settings.limits)
        return relayed(self.state, request, content)

    async def passed(self, request: Request) -> Response:
        """All other requests: passed on as they are."""
        posted = request.method == "POST"
        content = await read_body(request, self.settings.limits) if posted else b""
        return PassedResponse(self.state, request, content)

    async def live(self, request: Request) -> Response:
        """GET /health/live: the front responds."""
        return json_response(r.Health("ok"))

    async def ready(self, request: Request) -> Response:
        """GET /health: at least one replica accepts requests."""
        if self.admission.draining:
            return json_response(r.Health("draining"), 503)
        if not self.state.fleet.router.ready:
            return json_response(r.Health("starting"), 503)
        return json_response(r.Health("ok"))

    async def version(self, request: Request) -> Response:
        """GET /version."""
        return json_response(r.Version(__version__))

    async def metrics(self, request: Request) -> Response:
        """GET /metrics: those of all replicas, and of the front."""
        return Response(await render(self.state), media_type=CONTENT_TYPE)

    def app(self) -> SecurityMiddleware:
        """The ASGI application."""
        routes = [Route(path, self.generate, methods=["POST"]) for path in GENERATING]
        routes += [
            Route(HEALTH, self.ready),
            Route(f"{HEALTH}/ready", self.ready),
            Route(f"{HEALTH}/live", self.live),
            Route("/version", self.version),
            Route("/metrics", self.metrics),
            Route("/{path:path}", self.passed, methods=["GET", "POST"]),
        ]
        without_key = (HEALTH, f"{HEALTH}/ready", f"{HEALTH}/live", *WITHOUT_KEY)
        return SecurityMiddleware(
            Router(routes, redirect_slashes=False), self.settings, without_key
        )


class FrontServer(HttpServer):
    """The HTTP server of a front: it listens once a replica is ready, and ends them last."""

    def __init__(
        self, supervisor: Supervisor, settings: ServerSettings, name: str, recipe: str
    ) -> None:
        routes = FrontRoutes(supervisor, settings)
        super().__init__(routes.app(), routes.admission, settings, name, recipe)
        self.supervisor = supervisor

    async def startup(self, sockets: "list[object] | None" = None) -> None:  # type: ignore[override]
        """Start the replicas, then listen."""
        self._loop = asyncio.get_running_loop()
        self._loop.add_signal_handler(signal.SIGHUP, self.supervisor.roll)
        starting = asyncio.ensure_future(self.supervisor.start())
        while not starting.done() and not self.should_exit:
            await asyncio.wait({starting}, timeout=0.1)
        if self.should_exit:
            starting.cancel()
            return
        await starting
        await super().startup(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """First signal: drain; second, or one before it listens: end."""
        if not self.started:
            self.should_exit = self.force_exit = True
            return
        super().handle_exit(sig, frame)

    async def serve(self, sockets: "list[object] | None" = None) -> None:  # type: ignore[override]
        """Serve until a signal; then end the replicas."""
        try:
            await super().serve(sockets)  # type: ignore[arg-type]
        finally:
            await self.supervisor.stop()


def serve_front(supervisor: Supervisor, settings: ServerSettings, name: str, recipe: str) -> None:
    """Run a front until a signal."""
    log_to(sys.stderr)
    listen(FrontServer(supervisor, settings, name, recipe))

"""The HTTP server: runs until a signal, then drains requests and aborts those that are left."""

import asyncio
import errno
import logging
import socket
import sys
import time
from types import FrameType
from typing import TYPE_CHECKING, Protocol, TextIO

import msgspec
import uvicorn
from starlette.types import ASGIApp

from sapwood.errors import SapwoodError
from sapwood.server.app import ApiRoutes, make
from sapwood.server.http.access_log import LOG
from sapwood.server.http.http_protocol import protocol
from sapwood.server.settings import ServerSettings

if TYPE_CHECKING:
    from sapwood.server.model_pool import ModelPool

POLL = 0.05  # seconds between two checks of running requests
NOTICE = 0.5  # seconds that readiness is false before the last connection is refused
UNWIND = 5.0  # seconds for aborted requests to send their error


class RunningRequests(Protocol):
    """The requests of a server, for its shutdown."""

    draining: bool  # no new requests are accepted

    @property
    def busy(self) -> int:
        """API requests in progress."""

    def abort(self) -> None:
        """Fail all requests that are still running."""


class HttpServer(uvicorn.Server):
    """A server that drains on the first signal and ends on the second."""

    def __init__(
        self,
        app: ASGIApp,
        running: RunningRequests,
        settings: ServerSettings,
        name: str,
        recipe: str,
    ) -> None:
        config = uvicorn.Config(
            app,
            host=settings.host,
            port=settings.port,
            uds=settings.socket or None,
            http=protocol(settings.limits),
            ws="none",
            loop="asyncio",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=round(settings.limits.idle_seconds),
            timeout_graceful_shutdown=round(UNWIND),
            h11_max_incomplete_event_size=settings.limits.header_bytes,
        )
        super().__init__(config)
        self.running = running
        self.settings = settings
        self.name = name
        self.recipe = recipe
        self._drain: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def startup(self, sockets: "list[object] | None" = None) -> None:  # type: ignore[override]
        """Listen, log the address, and print a URL for a person."""
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)  # type: ignore[arg-type]
        if self.settings.socket:
            log_event("listening", socket=self.settings.socket, model=self.name)
            return
        port = self.servers[0].sockets[0].getsockname()[1]
        url = url_of(self.config.host, port)
        sys.stdout.write(f"{self.name} is served at {url}/v1, with a playground at {url}/\n")
        sys.stdout.flush()
        log_event(
            "listening",
            host=self.config.host,
            port=port,
            url=url,
            model=self.name,
            recipe=self.recipe,
        )

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """First signal: drain; second: end."""
        if self.running.draining or self._loop is None:
            self.should_exit = self.force_exit = True
            return
        self.running.draining = True
        self._loop.call_soon_threadsafe(self._begin_drain)

    def _begin_drain(self) -> None:
        self._drain = asyncio.ensure_future(self.drain())

    async def drain(self) -> None:
        """Wait for running requests, then stop listening."""
        running = self.running
        log_event("draining", requests=running.busy)
        began = time.monotonic()
        while running.busy and time.monotonic() - began < self.settings.drain_seconds:
            await asyncio.sleep(POLL)
        if running.busy:
            log_event("cutting", requests=running.busy)
            running.abort()
        await asyncio.sleep(max(0.0, NOTICE - (time.monotonic() - began)))
        self.should_exit = True


def url_of(host: str, port: int) -> str:
    """The URL that a person on this machine can open."""
    near = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{near}]:{port}" if ":" in near else f"http://{near}:{port}"


def start(api: ApiRoutes) -> ApiRoutes:
    """Start the thread of a model; its messages go to the log."""
    api.engine_thread.llm.progress = lambda message: log_event("progress", message=message)
    api.engine_thread.start()
    return api


def http_server(api: ApiRoutes, pool: "ModelPool | None" = None) -> HttpServer:
    """The HTTP server of these routes, or of several models."""
    if pool is None:
        return HttpServer(make(api), api.dispatcher, api.settings, api.name, api.recipe)
    names = ", ".join(pool.models)
    return HttpServer(make(api, pool.app), pool, api.settings, names, api.recipe)


def serve(api: ApiRoutes, pool: "ModelPool | None" = None, replica: int | None = None) -> None:
    """Run until a signal; the threads of the models are stopped last. A replica has a number."""
    log_to(sys.stderr, replica)
    start(api)
    server = http_server(api, pool)
    try:
        listen(server)
    finally:
        if not server.force_exit:
            if pool is not None:
                pool.close()
            api.engine_thread.stop()
    log_event("ended")


def listen(server: HttpServer) -> None:
    """Run a server until a signal."""
    try:
        server.run()
    except SystemExit as error:  # uvicorn exits when it cannot listen
        raise not_listening(server.settings) from error


def check_port(settings: ServerSettings) -> None:
    """Refuse a port that is taken: before a model is loaded, which takes long."""
    if settings.socket or settings.port == 0:
        return
    try:
        family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
        socket.create_server((settings.host, settings.port), family=family).close()
    except OSError as error:
        if error.errno == errno.EADDRINUSE:  # names are left to the server's own start
            raise not_listening(settings) from error


def not_listening(settings: ServerSettings) -> SapwoodError:
    """The error of an address that cannot be listened on."""
    address = settings.socket or f"{settings.host}:{settings.port}"
    return SapwoodError(
        f"cannot listen on {address}; is the port taken? choose another with --port"
    )


class ReplicaFormatter(logging.Formatter):
    """Adds the number of a replica to its log lines, which are JSON objects."""

    def __init__(self, replica: int) -> None:
        super().__init__("%(message)s")
        self.prefix = f'{{"replica":{replica},'

    def format(self, record: logging.LogRecord) -> str:
        """The line, with the number as its first field."""
        line = super().format(record)
        return self.prefix + line[1:] if line.startswith("{") else line


def log_to(stream: TextIO, replica: int | None = None) -> None:
    """Log to this stream, one JSON object per line."""
    handler = logging.StreamHandler(stream)
    plain = logging.Formatter("%(message)s")
    handler.setFormatter(plain if replica is None else ReplicaFormatter(replica))
    LOG.handlers = [handler]
    LOG.propagate = False
    LOG.setLevel(logging.INFO)
    # uvicorn's errors are counted here, without their texts
    logging.getLogger("uvicorn").setLevel(logging.CRITICAL)


def log_event(event: str, **fields: object) -> None:
    """Log one event of the server itself."""
    line = {"time": round(time.time(), 3), "event": event, **fields}
    LOG.info(msgspec.json.encode(line).decode())

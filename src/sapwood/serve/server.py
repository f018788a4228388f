"""Runs the application until a signal: readiness goes first, what is under way may finish, then the rest is cut."""

import asyncio
import logging
import sys
import time
from types import FrameType
from typing import TextIO

import msgspec
import uvicorn

from sapwood.errors import SapwoodError
from sapwood.serve.app import Front, make
from sapwood.serve.visit import LOG
from sapwood.serve.wire import protocol

LOOK = 0.05  # seconds between two looks at what is still under way
NOTICE = 0.5  # seconds that readiness is false before the last connection is refused
UNWIND = 5.0  # seconds for requests that were cut to say so


class Server(uvicorn.Server):
    """Drains on the first signal and ends on the second."""

    def __init__(self, front: Front) -> None:
        settings = front.settings
        config = uvicorn.Config(
            make(front),
            host=settings.host,
            port=settings.port,
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
        self.front = front
        self._drain: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def startup(self, sockets: "list[object] | None" = None) -> None:  # type: ignore[override]
        """Listen, and say where."""
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)  # type: ignore[arg-type]
        port = self.servers[0].sockets[0].getsockname()[1]
        say("listening", host=self.config.host, port=port, model=self.front.name, recipe=self.front.recipe)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """First signal: drain; second: end."""
        if self.front.desk.draining or self._loop is None:
            self.should_exit = self.force_exit = True
            return
        self.front.desk.draining = True
        self._loop.call_soon_threadsafe(self._begin_drain)

    def _begin_drain(self) -> None:
        self._drain = asyncio.ensure_future(self.drain())

    async def drain(self) -> None:
        """Wait for what is under way, then stop listening."""
        desk = self.front.desk
        say("draining", requests=desk.busy)
        began = time.monotonic()
        while desk.busy and time.monotonic() - began < self.front.settings.drain_seconds:
            await asyncio.sleep(LOOK)
        if desk.busy:
            say("cutting", requests=desk.busy)
            desk.cut()
        await asyncio.sleep(max(0.0, NOTICE - (time.monotonic() - began)))
        self.should_exit = True


def serve(front: Front) -> None:
    """Run until a signal; the worker is stopped last."""
    logs(sys.stderr)
    front.worker.llm.progress = lambda message: say("progress", message=message)
    front.worker.start()
    server = Server(front)
    try:
        server.run()
    except SystemExit as error:  # how uvicorn says that it cannot listen
        where = f"{front.settings.host}:{front.settings.port}"
        raise SapwoodError(f"cannot listen on {where}; is the port taken? choose another with --port") from error
    finally:
        if not server.force_exit:
            front.worker.stop()
    say("ended")


def logs(stream: TextIO) -> None:
    """One JSON object per line, on this stream."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("%(message)s"))
    LOG.handlers, LOG.propagate = [handler], False
    LOG.setLevel(logging.INFO)
    logging.getLogger("uvicorn").setLevel(logging.CRITICAL)  # its errors are counted here, without their texts


def say(event: str, **facts: object) -> None:
    """One line about the server itself."""
    LOG.info(msgspec.json.encode({"time": round(time.time(), 3), "event": event, **facts}).decode())

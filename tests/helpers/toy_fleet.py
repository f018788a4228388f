"""A front with replicas on the toy, all in this process; connections can be cut at any byte."""

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sapwood.fleet.front import FrontRoutes
from sapwood.fleet.replica import Replica
from sapwood.fleet.router import Router
from sapwood.server.app import ApiRoutes
from sapwood.server.engine_thread import EngineThread
from sapwood.server.limits import Limits
from sapwood.server.resume import SECRET
from sapwood.server.server import HttpServer, http_server
from sapwood.server.settings import ServerSettings
from tests.helpers.asgi_client import Served, model

FRONT = "the-secret-of-a-front"


class ToyReplicas:
    """Replicas that are always healthy, as a front sees them."""

    def __init__(self, sockets: list[str]) -> None:
        self.replicas: Sequence[Replica] = [
            Replica(number, socket, ready=True) for number, socket in enumerate(sockets)
        ]
        self.router = Router(self.replicas)
        self.restarts = 0

    @property
    def headers(self) -> list[tuple[str, str]]:
        """The header that opens a replica."""
        return [(SECRET, FRONT)]

    def heal(self) -> None:
        """Let health checks succeed."""
        for replica in self.replicas:
            replica.ready = True
        self.router.notify()


class Cutter:
    """A proxy before a replica that cuts connections after so many bytes of a response."""

    def __init__(self, path: str, target: str) -> None:
        self.path = path
        self.target = target
        self.cuts: list[int] = []  # bytes of the next responses; none: all of them
        self.requests = 0

    async def start(self) -> asyncio.Server:
        """Listen."""
        return await asyncio.start_unix_server(self.serve, self.path)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        self.requests += 1
        left = self.cuts.pop(0) if self.cuts else 1 << 40
        there, back = await asyncio.open_unix_connection(self.target)
        both = {
            asyncio.ensure_future(copy(reader, back)),
            asyncio.ensure_future(copy(there, writer, left)),
        }
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in both:
                task.cancel()
            writer.transport.abort()
            back.transport.abort()


async def copy(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, left: int = 1 << 40
) -> None:
    """Copy so many bytes, or until the end."""
    with contextlib.suppress(OSError):
        while left and (data := await reader.read(min(left, 1 << 16))):
            left -= len(data)
            writer.write(data)
            await writer.drain()


class ToyFleet(Served):
    """A front, its cutters and its replicas."""

    def __init__(self, folder: Path, count: int, recipe: str, limits: dict[str, Any], **given: Any):
        bounds = Limits().changed(limits)
        self.apis = [
            ApiRoutes(
                EngineThread(model(recipe=recipe)),
                ServerSettings(socket=str(folder / f"r{number}"), front=FRONT),
                "toy",
                recipe,
            )
            for number in range(count)
        ]
        self.cutters = [
            Cutter(str(folder / f"c{number}"), str(folder / f"r{number}"))
            for number in range(count)
        ]
        self.fleet = ToyReplicas([cutter.path for cutter in self.cutters])
        self.front = FrontRoutes(self.fleet, ServerSettings(limits=bounds, **given))
        super().__init__(self.apis[0])
        for api in self.apis[1:]:
            api.engine_thread.start()
        self.app = self.front.app()
        self.servers = [http_server(api) for api in self.apis]
        self.tasks = [
            asyncio.run_coroutine_threadsafe(server.serve(), self.loop) for server in self.servers
        ]
        self.run(self.listening())

    async def listening(self) -> None:
        """Wait for the replicas, then start the cutters."""
        while not all(server.started for server in self.servers):
            await asyncio.sleep(0.01)
        self.proxies = [await cutter.start() for cutter in self.cutters]

    def close(self) -> None:
        """End everything."""
        self.run(self.stop(self.servers))
        for task in self.tasks:
            task.result(10)
        for api in self.apis[1:]:
            api.engine_thread.stop()
            api.parsers.shutdown()
        super().close()

    async def stop(self, servers: list[HttpServer]) -> None:
        """Let the servers end."""
        for replica in self.fleet.replicas:
            replica.lost()
        for proxy in self.proxies:
            proxy.close()
        await asyncio.sleep(0.05)  # connections are closed a turn of the loop later
        for server in servers:
            server.should_exit = server.force_exit = True


@contextmanager
def toy_fleet(
    folder: Path,
    count: int = 2,
    recipe: str = "plain",
    limits: dict[str, Any] | None = None,
    **given: Any,
) -> Iterator[ToyFleet]:
    """A front with replicas on the toy."""
    one = ToyFleet(folder, count, recipe, limits or {}, **given)
    try:
        yield one
    finally:
        one.close()

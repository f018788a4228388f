"""Connections: a client that closes its sending side is served, one that is gone is noticed."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from uvicorn import Config
from uvicorn.server import ServerState

from sapwood.server.http import http_protocol

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
GET = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"


@asynccontextmanager
async def connected(app: Callable[..., Awaitable[None]]) -> AsyncIterator[Streams]:
    """A connection to a server of this application."""
    config = Config(app, lifespan="off", log_config=None, access_log=False)
    config.load()
    made = lambda: http_protocol.TimeoutProtocol(config, ServerState(), {})  # noqa: E731
    server = await asyncio.get_running_loop().create_server(made, "127.0.0.1", 0)
    async with server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        try:
            yield reader, writer
        finally:
            writer.close()


async def answer(send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"done"})


@pytest.mark.parametrize("requests", [1, 2])
def test_a_client_that_sends_no_more_gets_its_answers(requests: int) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.sleep(0.02)
        await answer(send)

    async def exchange() -> bytes:
        async with connected(app) as (reader, writer):
            writer.write(GET * requests)
            writer.write_eof()
            return await asyncio.wait_for(reader.read(), 2)

    found = asyncio.run(exchange())
    assert found.startswith(b"HTTP/1.1 200")
    assert found.count(b"done") == requests


def test_a_request_that_is_cut_is_not_answered() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    async def exchange() -> bytes:
        async with connected(app) as (reader, writer):
            writer.write(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\nhalf")
            await writer.drain()
            await asyncio.sleep(0.02)
            writer.write_eof()
            return await asyncio.wait_for(reader.read(), 2)

    assert asyncio.run(exchange()) == b""


@pytest.mark.parametrize("gone", [False, True])
def test_a_long_wait_tells_a_client_that_is_gone_from_one_that_listens(
    monkeypatch: pytest.MonkeyPatch, gone: bool
) -> None:
    monkeypatch.setattr(http_protocol, "PROBE", 0.02)
    left: list[bool] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        watching = asyncio.ensure_future(receive())
        await asyncio.wait({watching}, timeout=0.3)
        left.append(watching.done())
        watching.cancel()
        await answer(send)

    async def exchange() -> bytes:
        async with connected(app) as (reader, writer):
            writer.write(GET)
            writer.write_eof()
            if gone:
                writer.close()
                await asyncio.sleep(0.4)
                return b""
            return await asyncio.wait_for(reader.read(), 2)

    found = asyncio.run(exchange())
    assert left == [gone]
    if not gone:
        assert found.startswith(b"HTTP/1.1 100")
        assert b"HTTP/1.1 200" in found

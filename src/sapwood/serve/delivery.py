"""Sends an answer as it comes into being, and gives the request up as soon as nobody reads it."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from contextlib import aclosing
from typing import Any, TypeVar

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from sapwood.serve.desk import Desk
from sapwood.serve.errors import Gone
from sapwood.serve.settings import Settings
from sapwood.serve.stream import Chunks, events, paced
from sapwood.serve.telling import News, Teller
from sapwood.serve.visit import Visit

T = TypeVar("T")
QUIET = 15.0  # seconds after which a comment keeps a stream alive
ALIVE = b": keep-alive\n\n"
STREAM = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-store", "x-accel-buffering": "no"}


class Delivery(Response):
    """The answer to an order; errors before its first byte have a status of their own."""

    def __init__(self, teller: Teller, desk: Desk, settings: Settings, visit: Visit) -> None:
        self.teller, self.desk, self.settings, self.visit = teller, desk, settings, visit
        ignored = teller.order.ignored
        self.extra = {"x-sapwood-ignored": ", ".join(ignored)} if ignored else {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Work until the answer is out or the client is gone."""
        with self.desk.place(self.visit.tenant):
            work = self.stream(send) if self.teller.order.stream else self.whole(scope, receive, send)
            try:
                await unless_gone(receive, work, lambda: self.visit.over)
            finally:
                self.visit.count(self.teller)

    async def whole(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One JSON object."""
        async with aclosing(self.desk.news(self.teller.order)) as arriving:
            async for news in arriving:
                self.teller.take(news)
        body = msgspec.json.encode(self.teller.whole())
        response = Response(body, headers=self.extra, media_type="application/json")
        await self.write(response(scope, receive, send))

    async def stream(self, send: Send) -> None:
        """Server-sent events; the status waits for the first step, so that a failure before it is no 200."""
        seconds = self.settings.cadence_ms / 1000
        chunks = Chunks(self.teller, padded=self.teller.order.padded or seconds > 0)
        async with aclosing(self.desk.news(self.teller.order)) as arriving:
            first = asyncio.ensure_future(anext(arriving))
            try:
                await asyncio.wait({first}, timeout=QUIET)
                if first.done():
                    first.result()
                groups = after(first, arriving)
                async with aclosing(events(paced(groups, seconds) if seconds else groups, chunks)) as parts:
                    await self.events(send, parts)
            finally:
                first.cancel()
                await asyncio.gather(first, return_exceptions=True)

    async def events(self, send: Send, parts: AsyncIterator[bytes]) -> None:
        """Write every part, with comments while nothing comes."""
        headers = [(name.encode(), value.encode()) for name, value in (STREAM | self.extra).items()]
        await self.write(send({"type": "http.response.start", "status": 200, "headers": headers}))
        following: asyncio.Future[bytes | None] = asyncio.ensure_future(anext(parts, None))
        try:
            while True:
                await asyncio.wait({following}, timeout=QUIET)
                part = following.result() if following.done() else ALIVE
                if part is None:
                    break
                if part:
                    await self.write(send({"type": "http.response.body", "body": part, "more_body": True}))
                if following.done():
                    following = asyncio.ensure_future(anext(parts, None))
            await self.write(send({"type": "http.response.body", "body": b""}))
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)

    async def write(self, sending: Coroutine[Any, Any, None] | Any) -> None:
        """Send, unless the reader takes nothing for too long."""
        try:
            async with asyncio.timeout(self.settings.limits.write_seconds):
                await sending
        except TimeoutError as error:
            raise Gone("the reader took nothing") from error


async def after(first: "asyncio.Future[News]", rest: AsyncIterator[News]) -> AsyncGenerator[list[News]]:
    """The first news and all others, each as a group of one."""
    yield [await first]
    async for news in rest:
        yield [news]


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, T], over: Callable[[], bool] = lambda: False) -> T:
    """The work's result; it is given up when the client leaves before the answer is over."""
    working, watching = asyncio.ensure_future(work), asyncio.ensure_future(gone(receive))
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        if working.done() or over():
            return await working
        raise Gone("the client left")
    finally:
        working.cancel()
        watching.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


async def gone(receive: Receive) -> None:
    """Return when the client has left."""
    while (await receive())["type"] != "http.disconnect":
        pass

"""Sends a response while it is generated; cancels the request when the client disconnects."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Mapping
from contextlib import aclosing
from types import MappingProxyType
from typing import Any, ClassVar, TypeVar

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from sapwood.server.dispatcher import Dispatcher
from sapwood.server.errors import ClientDisconnected, as_error
from sapwood.server.http.access_log import AccessLogEntry
from sapwood.server.http.middleware import error_response, front_link
from sapwood.server.http.sse import EventStream, StreamEncoder, events, group_event, paced
from sapwood.server.openai.response_builder import ChoiceDelta, ResponseBuilder
from sapwood.server.resume import (
    FRAMES,
    LOST,
    FrameKind,
    FrontLink,
    ResultHead,
    TokenCounts,
    frame,
)
from sapwood.server.settings import ServerSettings

T = TypeVar("T")
QUIET = 15.0  # seconds without an event after which a comment keeps a stream alive
KEEP_ALIVE = b": keep-alive\n\n"
STREAM_HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-store",
    "x-accel-buffering": "no",
}
FRAME_HEADERS = {"content-type": FRAMES}


class GenerationResponse(Response):
    """The response to a parsed request; errors before its first byte set the HTTP status."""

    stream_headers: ClassVar[Mapping[str, str]] = STREAM_HEADERS

    def __init__(
        self,
        builder: ResponseBuilder,
        dispatcher: Dispatcher,
        settings: ServerSettings,
        log_entry: AccessLogEntry,
    ) -> None:
        self.builder = builder
        self.dispatcher = dispatcher
        self.settings = settings
        self.log_entry = log_entry
        ignored = builder.parsed.ignored
        self.extra_headers = {"x-sapwood-ignored": ", ".join(ignored)} if ignored else {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Generate and send until the response is complete or the client disconnects."""
        parsed = self.builder.parsed
        link = front_link(scope)
        with self.dispatcher.admit(self.log_entry.tenant):
            if parsed.stream:
                work = self.stream(send, link)
            elif link is None:
                work = self.whole(scope, receive, send)
            else:
                work = self.whole_in_frames(send, link, scope["path"])
            try:
                await until_disconnect(receive, work, lambda: self.log_entry.over)
            finally:
                self.log_entry.prompt_tokens = parsed.prompt_tokens
                self.log_entry.completion_tokens = self.builder.completion_tokens

    # ------------------------------------------------------------------------------- whole
    async def whole(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the whole response as one JSON object."""
        async with aclosing(self.dispatcher.deltas(self.builder.parsed)) as deltas:
            async for delta in deltas:
                self.builder.add(delta)
        response = Response(
            self.body_bytes(), headers=self.extra_headers, media_type="application/json"
        )
        await self.write(response(scope, receive, send))

    def body_bytes(self) -> bytes:
        """The whole response as JSON."""
        return msgspec.json.encode(self.builder.response())

    async def whole_in_frames(self, send: Send, link: FrontLink, path: str) -> None:
        """Send a front every delta, and the whole response at the end."""
        parts = self.whole_frames(link, path)
        first = await anext(parts)  # an error before it sets the HTTP status
        async with aclosing(parts):
            await self.send_events(send, prefixed(first, parts), FRAME_HEADERS, self.quiet_frame())

    async def whole_frames(self, link: FrontLink, path: str) -> AsyncGenerator[bytes]:
        """The frames of a response that does not stream."""
        parsed = self.builder.parsed
        for group in link.groups:
            for delta in group:
                self.builder.add(delta)
        begun = link.resumed
        try:
            async with aclosing(self.dispatcher.deltas(parsed, link.finished)) as deltas:
                async for delta in deltas:
                    if not begun:
                        yield frame(FrameKind.OPEN, link.opening(self.builder, None))
                        begun = True
                    self.builder.add(delta)
                    yield frame(FrameKind.PART, [delta])
            status = 200
            headers = {"content-type": "application/json"} | self.extra_headers
            body = self.body_bytes()
        except Exception as problem:
            error = as_error(problem)
            if not begun or error.status == LOST:
                raise
            failed = error_response(error, path)
            status = error.status
            headers = dict(failed.headers)
            body = bytes(failed.body)
        yield frame(FrameKind.RESULT, ResultHead(status, headers, self.token_counts()), body)

    def token_counts(self) -> TokenCounts:
        """Tokens of prompts and output so far."""
        return TokenCounts(self.builder.parsed.prompt_tokens, self.builder.completion_tokens)

    # ------------------------------------------------------------------------------- streams
    def encoder(self, *, padded: bool) -> StreamEncoder:
        """The encoder of a stream."""
        return EventStream(self.builder, padded=padded)

    def keep_alive(self) -> bytes:
        """Bytes that add nothing to a stream, for a long wait."""
        return KEEP_ALIVE

    def quiet_frame(self) -> bytes:
        """The same for a front."""
        return frame(FrameKind.PART, None, self.keep_alive())

    def head_of_stream(self) -> dict[str, str]:
        """The headers of a stream."""
        return {**self.stream_headers, **self.extra_headers}

    async def stream(self, send: Send, link: FrontLink | None) -> None:
        """Send server-sent events; an error before the first step sets the HTTP status."""
        seconds = self.settings.cadence_ms / 1000
        encoder = self.encoder(padded=self.builder.parsed.padded or seconds > 0)
        finished = frozenset() if link is None else link.finished
        deltas = self.dispatcher.deltas(self.builder.parsed, finished)
        async with aclosing(deltas):
            first = asyncio.ensure_future(anext(deltas, None))
            try:
                await asyncio.wait({first}, timeout=QUIET)
                if first.done():
                    first.result()
                groups = in_groups(first, deltas)
                if seconds:
                    groups = paced(groups, seconds)
                if link is None:
                    parts = client_events(groups, encoder)
                    headers, quiet = self.head_of_stream(), self.keep_alive()
                else:
                    parts = self.stream_frames(groups, encoder, link)
                    headers, quiet = FRAME_HEADERS, self.quiet_frame()
                async with aclosing(parts):
                    await self.send_events(send, parts, headers, quiet)
            finally:
                first.cancel()
                await asyncio.gather(first, return_exceptions=True)

    async def stream_frames(
        self,
        groups: AsyncGenerator[list[ChoiceDelta]],
        encoder: StreamEncoder,
        link: FrontLink,
    ) -> AsyncGenerator[bytes]:
        """The frames of a stream; of a resumed one, those that follow."""
        opening = b"".join(encoder.opening())
        if not link.resumed:
            record = link.opening(self.builder, self.head_of_stream())
            yield frame(FrameKind.OPEN, record, opening)
        for group in link.groups:
            group_event(group, encoder)
        async with aclosing(events(groups, HandedOn(encoder))) as parts:
            async for body, sent in parts:
                if sent is None:
                    yield frame(FrameKind.END, self.token_counts(), body)
                else:
                    yield frame(FrameKind.PART, sent or None, body)

    async def send_events(
        self,
        send: Send,
        parts: AsyncIterator[bytes],
        headers: Mapping[str, str] = MappingProxyType(STREAM_HEADERS),
        quiet: bytes = KEEP_ALIVE,
    ) -> None:
        """Send every part, and `quiet` when none came for a while."""
        pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
        await self.write(send({"type": "http.response.start", "status": 200, "headers": pairs}))
        following: asyncio.Future[bytes | None] = asyncio.ensure_future(anext(parts, None))
        try:
            while True:
                await asyncio.wait({following}, timeout=QUIET)
                part = following.result() if following.done() else quiet
                if part is None:
                    break
                if part:
                    await self.write(
                        send({"type": "http.response.body", "body": part, "more_body": True})
                    )
                if following.done():
                    following = asyncio.ensure_future(anext(parts, None))
            await self.write(send({"type": "http.response.body", "body": b""}))
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)

    async def write(self, sending: Coroutine[Any, Any, None] | Any) -> None:
        """Send, or disconnect a client that reads nothing for too long."""
        try:
            async with asyncio.timeout(self.settings.limits.write_seconds):
                await sending
        except TimeoutError as error:
            raise ClientDisconnected("the client read nothing") from error


class HandedOn:
    """An encoder whose stream may go on elsewhere: then a failure is raised, not sent."""

    def __init__(self, encoder: StreamEncoder) -> None:
        self.opening = encoder.opening
        self.delta_events = encoder.delta_events
        self.closing = encoder.closing
        self.empty = encoder.empty
        self._failure = encoder.failure

    def failure(self, problem: Exception) -> bytes:
        """The last events of a stream that failed, unless another replica can go on."""
        if as_error(problem).status == LOST:
            raise problem
        return self._failure(problem)


async def client_events(
    groups: AsyncGenerator[list[ChoiceDelta]], encoder: StreamEncoder
) -> AsyncGenerator[bytes]:
    """All events of a stream, as a client gets them."""
    yield b"".join(encoder.opening())
    async with aclosing(events(groups, encoder)) as parts:
        async for body, _ in parts:
            yield body


async def prefixed(first: bytes, rest: AsyncIterator[bytes]) -> AsyncGenerator[bytes]:
    """The first part, then the others."""
    yield first
    async for part in rest:
        yield part


async def in_groups(
    first: "asyncio.Future[ChoiceDelta | None]", rest: AsyncIterator[ChoiceDelta]
) -> AsyncGenerator[list[ChoiceDelta]]:
    """The first delta and all others, each as a group of one; none when all were sent before."""
    delta = await first
    if delta is not None:
        yield [delta]
    async for following in rest:
        yield [following]


async def until_disconnect(
    receive: Receive, work: Coroutine[Any, Any, T], over: Callable[[], bool] = lambda: False
) -> T:
    """Result of the work, which is cancelled when the client disconnects before it is over."""
    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(disconnected(receive))
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        if working.done() or over():
            return await working
        raise ClientDisconnected("the client disconnected")
    finally:
        working.cancel()
        watching.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


async def disconnected(receive: Receive) -> None:
    """Return when the client has disconnected."""
    while (await receive())["type"] != "http.disconnect":
        pass

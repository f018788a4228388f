"""HTTP/1.1 by uvicorn on h11, with timeouts for headers, idle connections and slow clients.

A client may close its sending side after its request and still read the response. A closed
connection looks the same until something is written to it, so an interim response (100) is sent
from time to time while the response is pending: a client that is gone is noticed by it.
"""

import asyncio
import time
from typing import Any

import h11
import msgspec
from uvicorn.protocols.http.h11_impl import H11Protocol

from sapwood.server.errors import ApiError
from sapwood.server.limits import Limits

PROBE = 0.5  # seconds between interim responses to a client that has closed its sending side


def protocol(given: Limits) -> type[H11Protocol]:
    """The protocol of every connection, under these limits."""

    class TimeoutServer(TimeoutProtocol):
        limits = given

    return TimeoutServer


class TimeoutProtocol(H11Protocol):
    """One connection, with a timeout for each kind of waiting."""

    limits = Limits()

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._header_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        self._probe_timer: asyncio.TimerHandle | None = None
        self._half_closed = False  # the client sends no more
        self.idle_since = 0.0

    # ------------------------------------------------------------------------------- connections
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept a connection; above the limit, close the one that has been idle longest."""
        super().connection_made(transport)
        self.idle_since = time.monotonic()
        self._expect_headers()
        if len(self.connections) > self.limits.connections:
            idle = [
                other
                for other in self.connections
                if isinstance(other, TimeoutProtocol) and not other.busy
            ]
            min(idle, key=lambda other: other.idle_since, default=self).transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the timers."""
        super().connection_lost(exc)
        self._cancel_timers()

    @property
    def busy(self) -> bool:
        """True while a request is served."""
        return self.cycle is not None and not self.cycle.response_complete

    def _cancel_timers(self) -> None:
        for timer in (self._header_timer, self._write_timer, self._probe_timer):
            if timer is not None:
                timer.cancel()
        self._header_timer = self._write_timer = self._probe_timer = None

    # ------------------------------------------------------------------------------- headers
    def _expect_headers(self) -> None:
        if self._header_timer is None:
            self._header_timer = self.loop.call_later(self.limits.header_seconds, self._too_slow)

    def _too_slow(self) -> None:
        self._header_timer = None
        if not self.busy and not self.transport.is_closing():
            self.refuse(
                ApiError(
                    408, f"the headers were not complete after {self.limits.header_seconds:g} s"
                )
            )

    def data_received(self, data: bytes) -> None:
        """Parse what arrived; headers that have begun must be complete in time."""
        before = self.cycle
        if not self.busy:
            self._expect_headers()
        super().data_received(data)
        if self.cycle is not before and self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def on_response_complete(self) -> None:
        """Note the time from which the connection is idle."""
        self.idle_since = time.monotonic()
        super().on_response_complete()
        if self._half_closed and not self.busy:
            self.transport.close()

    # ------------------------------------------------------------------------------- half-closed
    def eof_received(self) -> bool:  # type: ignore[override]
        """Keep the connection when the request is complete and its response is pending."""
        if not self.busy or self.cycle.more_body:
            return False
        self._half_closed = True
        self._probe_timer = self.loop.call_later(PROBE, self._probe)
        return True

    def _probe(self) -> None:
        """Write an interim response, which fails when the client is gone."""
        if not self.busy or self.conn.our_state is not h11.SEND_RESPONSE:
            return
        if self.scope["http_version"] == "1.1":
            interim = h11.InformationalResponse(status_code=100, headers=[])
            self.transport.write(self.conn.send(interim) or b"")
        self._probe_timer = self.loop.call_later(PROBE, self._probe)

    # ------------------------------------------------------------------------------- slow clients
    def pause_writing(self) -> None:
        """Start the timeout of a client that does not read: the write buffer is full."""
        super().pause_writing()
        self._write_timer = self.loop.call_later(self.limits.write_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        """Stop that timeout: the client reads again."""
        super().resume_writing()
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    # ------------------------------------------------------------------------------- failures
    def send_400_response(self, msg: str) -> None:
        """Refuse what is not HTTP with the API's own error object."""
        self.refuse(ApiError(400, "this is not a valid HTTP request, or its headers are too large"))

    def refuse(self, error: ApiError) -> None:
        """Send an error and close the connection."""
        body = msgspec.json.encode(error.record())
        headers = [
            ("content-type", "application/json"),
            ("content-length", str(len(body))),
            ("connection", "close"),
        ]
        try:
            parts = (
                h11.Response(status_code=error.status, headers=headers),
                h11.Data(data=body),
                h11.EndOfMessage(),
            )
            for part in parts:
                self.transport.write(self.conn.send(part) or b"")
        except h11.LocalProtocolError:  # in the middle of another response
            pass
        self.transport.close()

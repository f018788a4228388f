"""HTTP/1.1 by uvicorn on h11, with an end to what it leaves open: half-sent headers, idle readers and writers."""

import asyncio
import time
from typing import Any

import h11
import msgspec
from uvicorn.protocols.http.h11_impl import H11Protocol

from sapwood.serve.errors import ApiError
from sapwood.serve.limits import Limits


def protocol(limits: Limits) -> type[H11Protocol]:
    """The protocol of every connection, under these limits."""

    class Wire(Patient):
        bounds = limits

    return Wire


class Patient(H11Protocol):
    """One connection, with an end to each kind of waiting."""

    bounds = Limits()

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._until_headers: asyncio.TimerHandle | None = None
        self._until_read: asyncio.TimerHandle | None = None
        self.quiet_since = 0.0

    # ------------------------------------------------------------------------------- coming and going
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take the connection; where there are too many, the one that has been idle longest goes."""
        super().connection_made(transport)
        self.quiet_since = time.monotonic()
        self._expect_headers()
        if len(self.connections) > self.bounds.connections:
            idle = [other for other in self.connections if isinstance(other, Patient) and not other.at_work]
            min(idle, key=lambda other: other.quiet_since, default=self).transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the timers."""
        super().connection_lost(exc)
        self._drop_timers()

    @property
    def at_work(self) -> bool:
        """True while a request is answered."""
        return self.cycle is not None and not self.cycle.response_complete

    def _drop_timers(self) -> None:
        for timer in (self._until_headers, self._until_read):
            if timer is not None:
                timer.cancel()
        self._until_headers = self._until_read = None

    # ------------------------------------------------------------------------------- headers
    def _expect_headers(self) -> None:
        if self._until_headers is None:
            self._until_headers = self.loop.call_later(self.bounds.header_seconds, self._too_slow)

    def _too_slow(self) -> None:
        self._until_headers = None
        if not self.at_work and not self.transport.is_closing():
            self.refuse(ApiError(408, f"the headers were not complete after {self.bounds.header_seconds:g} s"))

    def data_received(self, data: bytes) -> None:
        """Read on; headers that have begun must be complete in time."""
        before = self.cycle
        if not self.at_work:
            self._expect_headers()
        super().data_received(data)
        if self.cycle is not before and self._until_headers is not None:
            self._until_headers.cancel()
            self._until_headers = None

    def on_response_complete(self) -> None:
        """Be idle from now on."""
        self.quiet_since = time.monotonic()
        super().on_response_complete()

    # ------------------------------------------------------------------------------- readers
    def pause_writing(self) -> None:
        """The buffer is full; a reader that takes nothing for too long is cut off."""
        super().pause_writing()
        self._until_read = self.loop.call_later(self.bounds.write_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        """The reader goes on."""
        super().resume_writing()
        if self._until_read is not None:
            self._until_read.cancel()
            self._until_read = None

    # ------------------------------------------------------------------------------- failures
    def send_400_response(self, msg: str) -> None:
        """What is no HTTP gets the same error object as everything else."""
        self.refuse(ApiError(400, "this is not a valid HTTP request, or its headers are too large"))

    def refuse(self, error: ApiError) -> None:
        """Say what is wrong and close."""
        body = msgspec.json.encode(error.record())
        headers = [
            ("content-type", "application/json"),
            ("content-length", str(len(body))),
            ("connection", "close"),
        ]
        try:
            parts = (h11.Response(status_code=error.status, headers=headers), h11.Data(data=body), h11.EndOfMessage())
            for part in parts:
                self.transport.write(self.conn.send(part) or b"")
        except h11.LocalProtocolError:  # in the middle of another answer
            pass
        self.transport.close()

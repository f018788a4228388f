"""Passes requests on to replicas; when one is lost, another goes on with the same response."""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from sapwood.engine.request import RequestTimeout
from sapwood.fleet.admission import Admission
from sapwood.fleet.replica import Replica, ReplicaConnection, ReplicaLost, ReplyHead
from sapwood.fleet.router import SESSION, Affinity, Router, affinity_of
from sapwood.server.errors import ApiError
from sapwood.server.http.access_log import AccessLogEntry
from sapwood.server.http.http_body import OLLAMA
from sapwood.server.http.middleware import ANTHROPIC, error_record
from sapwood.server.limits import Limits
from sapwood.server.openai.generation_response import KEEP_ALIVE, QUIET, until_disconnect
from sapwood.server.resume import (
    FRAMES,
    REQUEST_ID,
    RESUME,
    TENANT,
    Continuation,
    FrameKind,
    FrameReader,
    TokenCounts,
    decode_counts,
    decode_head,
    decode_opening,
    encode_continuation,
)

# replicas lost in a row, without a token between, after which a request fails: so many that one
# which ends replicas by itself is stopped, and one that was merely there hardly ever
LOSSES = 32
REFUSALS = 8  # by all replicas in turn
FULL = 429  # status of a full queue
BUSY = (FULL, 503)  # statuses after which another replica is asked
BUSY_PAUSE_S = 0.1  # before a response that has begun asks busy replicas again
RESPONSES = "/v1/responses"
# headers of a replica's response that its client gets from the front instead
OWN_HEADERS = frozenset(
    (
        "connection",
        "content-length",
        "date",
        "keep-alive",
        "referrer-policy",
        "server",
        "transfer-encoding",
        "x-content-type-options",
        "x-request-id",
    )
)


class Fleet(Protocol):
    """The replicas of a front."""

    replicas: Sequence[Replica]
    router: Router
    restarts: int  # replicas that ended and were started again

    @property
    def headers(self) -> list[tuple[str, str]]:
        """The header that opens a replica."""


@dataclass
class FrontState:
    """All that the requests of a front share."""

    fleet: Fleet
    admission: Admission
    limits: Limits
    resumed: int = 0  # responses that went on elsewhere, each time counted
    repeated: int = 0  # requests sent again before their first token


@dataclass(eq=False)
class RelayedResponse(Response):
    """A response of the API that outlives the replicas it comes from."""

    front: FrontState
    path: str
    content: bytes
    affinity: Affinity
    log_entry: AccessLogEntry
    began: float = field(default_factory=time.monotonic)
    begun: bool = False  # the client has got the head of a stream
    opening: bytes = b""
    groups: list[bytes] = field(default_factory=list)
    attempts: int = 0  # replicas that were asked
    losses: int = 0  # in a row, without a token between
    refusals: int = 0  # by all replicas

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response until it is complete or the client disconnects."""
        with self.front.admission.admit(self.log_entry.tenant):
            work = self.front.admission.abortable(self.forward(scope, receive, send))
            try:
                await until_disconnect(receive, work, lambda: self.log_entry.over)
            except ApiError as error:
                if not self.begun:
                    raise
                await self.write(send, failure_event(error, self.path), more=False)

    # ------------------------------------------------------------------------------- replicas
    async def forward(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Ask replicas until the response is complete."""
        refusal: Response | None = None
        tried: set[Replica] = set()
        while True:
            replica = self.front.fleet.router.choose(self.affinity, tried)
            if replica is None and refusal is not None and self.given_up(refusal):
                await refusal(scope, receive, send)
                return
            if replica is None:
                tried.clear()
                await self.wait(send)
                continue
            try:
                refusal = await self.attempt(replica, send, scope, receive)
            except ReplicaLost as error:
                self.count_loss(replica, error)
                continue
            if refusal is None:
                return
            tried.add(replica)

    def given_up(self, refusal: Response) -> bool:
        """True when every ready replica refuses a request whose response has not begun."""
        if self.begun or not self.front.fleet.router.ready:
            return False
        self.refusals += 1
        return refusal.status_code == FULL or self.refusals > REFUSALS

    async def wait(self, send: Send) -> None:
        """Wait for a replica; a stream is kept alive meanwhile."""
        router = self.front.fleet.router
        left = self.front.limits.request_seconds - (time.monotonic() - self.began)
        if left <= 0:
            raise too_long(self.front.limits)
        pause = BUSY_PAUSE_S if router.ready else min(QUIET, left)
        if not await router.wait(pause) and self.begun and pause == QUIET:
            await self.write(send, keep_alive(self.path))

    def count_loss(self, replica: Replica, error: ReplicaLost) -> None:
        """Count a lost replica; too many in a row are the request's own fault."""
        replica.lost()
        self.losses += 1
        if self.opening:
            self.front.resumed += 1
        else:
            self.front.repeated += 1
        if self.losses > LOSSES:
            raise ApiError(503, "replicas end again and again on this request") from error

    async def attempt(
        self, replica: Replica, send: Send, scope: Scope, receive: Receive
    ) -> Response | None:
        """Let one replica generate; a response that says that it is busy is returned."""
        socket = replica.socket
        replica.running += 1
        self.attempts += 1
        connection: ReplicaConnection | None = None
        try:
            connection = await replica.connect()
            head = await connection.request("POST", self.path, *self.message())
            if head.headers.get("content-type") == FRAMES:
                await self.read_frames(connection, send)
                busy = None
            else:
                body = await connection.whole_body()
                busy = await self.refused(head, body, scope, receive, send)
            replica.release(connection, socket)
            connection = None
            return busy
        finally:
            replica.running -= 1
            if connection is not None:
                connection.abort()

    def message(self) -> tuple[list[tuple[str, str]], bytes]:
        """Headers and content of the request, with everything sent so far."""
        elapsed = time.monotonic() - self.began
        record = Continuation(self.opening, self.groups, elapsed)
        continuation = encode_continuation(record) if self.attempts > 1 else b""
        headers = [
            *self.front.fleet.headers,
            *own_headers(self.log_entry),
            ("content-type", "application/json"),
            (RESUME, str(len(continuation))),
        ]
        return headers, continuation + self.content

    async def refused(
        self, head: ReplyHead, body: bytes, scope: Scope, receive: Receive, send: Send
    ) -> Response | None:
        """Send an error of a replica, unless another may accept the request."""
        if self.begun and head.status not in BUSY:
            raise ReplicaLost(f"status {head.status}")  # it took the request before
        response = Response(body, head.status, shown(head.headers))
        if head.status in BUSY:
            return response
        await response(scope, receive, send)
        return None

    # ------------------------------------------------------------------------------- frames
    async def read_frames(self, connection: ReplicaConnection, send: Send) -> None:
        """Pass on what is for the client, and keep the records."""
        reader = FrameReader()
        complete = False
        try:
            async for data in connection.body():
                complete |= await self.read_piece(reader.feed(data), send)
        except ReplicaLost:
            if not complete:  # else it died after the last frame: the client has got everything
                raise
        if not complete:
            raise ReplicaLost("the frames ended early")

    async def read_piece(
        self, frames: Iterable[tuple[FrameKind, bytes, bytes]], send: Send
    ) -> bool:
        """Pass on frames that came together, in one write; True when the last was among them."""
        bodies: list[bytes] = []
        complete = False
        for kind, record, body in frames:
            if kind is FrameKind.RESULT:
                await self.send_result(record, body, send)
                return True
            bodies.append(body)
            if kind is FrameKind.OPEN:
                bodies = bodies if await self.open(record, send) else []
            elif kind is FrameKind.END:
                self.count_tokens(decode_counts(record))
                complete = True
            elif record:
                self.groups.append(record)
                self.losses = 0
        if complete or any(bodies):
            await self.write(send, b"".join(bodies), more=not complete)
        return complete

    async def open(self, record: bytes, send: Send) -> bool:
        """Keep the record of a response that begins; True for a stream that begins now."""
        self.opening = record
        headers = decode_opening(record).headers
        if headers is None or self.begun:
            return False
        self.begun = True
        await send(start_message(200, headers))
        return True

    async def send_result(self, record: bytes, body: bytes, send: Send) -> None:
        """Send a response that does not stream."""
        head = decode_head(record)
        self.count_tokens(head.tokens)
        kept = {name: value for name, value in head.headers.items() if name != "content-length"}
        length = {"content-length": str(len(body))}
        await send(start_message(head.status, kept | length))
        await self.write(send, body, more=False)

    def count_tokens(self, tokens: TokenCounts) -> None:
        """Note the tokens for the log."""
        self.log_entry.prompt_tokens = tokens.prompt
        self.log_entry.completion_tokens = tokens.completion

    async def write(self, send: Send, body: bytes, *, more: bool = True) -> None:
        """Send a part of the body; the connection ends by itself when its client reads nothing."""
        await send({"type": "http.response.body", "body": body, "more_body": more})


class PassedResponse(Response):
    """A response that a replica sends as it is; it is asked again elsewhere until it begins."""

    def __init__(self, front: FrontState, request: Request, content: bytes) -> None:
        self.front = front
        self.request = request
        self.content = content

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response until it is complete or the client disconnects."""
        log_entry: AccessLogEntry = scope["log_entry"]
        with self.front.admission.admit(log_entry.tenant):
            work = self.front.admission.abortable(self.forward(send, log_entry))
            await until_disconnect(receive, work, lambda: log_entry.over)

    async def forward(self, send: Send, log_entry: AccessLogEntry) -> None:
        """Ask replicas until one answers."""
        deadline = time.monotonic() + self.front.limits.request_seconds
        router = self.front.fleet.router
        for _ in range(LOSSES):
            while (replica := router.choose(Affinity())) is None:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise too_long(self.front.limits)
                await router.wait(left)
            try:
                await self.attempt(replica, send, log_entry)
                return
            except ReplicaLost:
                replica.lost()
                if log_entry.status:
                    raise
        raise ApiError(503, "replicas end again and again on this request")

    async def attempt(self, replica: Replica, send: Send, log_entry: AccessLogEntry) -> None:
        """Let one replica answer."""
        socket = replica.socket
        scope = self.request.scope
        query = scope["query_string"].decode("latin-1")
        target = scope["raw_path"].decode("latin-1") + (f"?{query}" if query else "")
        kind = self.request.headers.get("content-type", "application/json")
        headers = [*self.front.fleet.headers, *own_headers(log_entry), ("content-type", kind)]
        replica.running += 1
        connection: ReplicaConnection | None = None
        try:
            connection = await replica.connect()
            head = await connection.request(self.request.method, target, headers, self.content)
            parts = connection.body()
            first = await anext(parts, b"")
            await send(start_message(head.status, shown(head.headers)))
            await send({"type": "http.response.body", "body": first, "more_body": True})
            async for part in parts:
                await send({"type": "http.response.body", "body": part, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
            replica.release(connection, socket)
            connection = None
        finally:
            replica.running -= 1
            if connection is not None:
                connection.abort()


def relayed(front: FrontState, request: Request, content: bytes) -> RelayedResponse:
    """The response to a request of the API."""
    log_entry: AccessLogEntry = request.scope["log_entry"]
    affinity = affinity_of(content, log_entry.tenant, request.headers.get(SESSION))
    return RelayedResponse(front, request.scope["path"], content, affinity, log_entry)


def own_headers(log_entry: AccessLogEntry) -> list[tuple[str, str]]:
    """The headers that tell a replica what the front knows of a request."""
    return [(TENANT, log_entry.tenant), (REQUEST_ID, log_entry.id)]


def shown(headers: Mapping[str, str]) -> dict[str, str]:
    """The headers of a replica that its client gets."""
    return {name: value for name, value in headers.items() if name not in OWN_HEADERS}


def start_message(status: int, headers: Mapping[str, str]) -> dict[str, object]:
    """The ASGI message that begins a response."""
    pairs = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
    return {"type": "http.response.start", "status": status, "headers": pairs}


def too_long(limits: Limits) -> RequestTimeout:
    """The error of a request for which no replica became ready in time."""
    return RequestTimeout(f"no replica was ready within {limits.request_seconds:g} s")


def keep_alive(path: str) -> bytes:
    """Bytes that add nothing to a stream of this path."""
    if not path.startswith(OLLAMA):
        return KEEP_ALIVE
    from sapwood.server.ollama.stream import quiet_line

    return quiet_line(path)


def failure_event(error: ApiError, path: str) -> bytes:
    """The last events of a stream that no replica can complete, in the form of its API."""
    if path.startswith(OLLAMA):
        return msgspec.json.encode(error_record(error, path)) + b"\n"
    if path.startswith(ANTHROPIC):
        return b"event: error\ndata: " + msgspec.json.encode(error_record(error, path)) + b"\n\n"
    record = error.record()
    if path == RESPONSES:
        named = {"type": "error", **record["error"]}
        return b"event: error\ndata: " + msgspec.json.encode(named) + b"\n\n"
    return b"data: " + msgspec.json.encode(record) + b"\n\ndata: [DONE]\n\n"

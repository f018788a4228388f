"""A replica as its front sees it: its socket, its connections and its load."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

LINE = 64 << 10  # most bytes of a head, or of a line of HTTP
READ = 64 << 10  # most bytes of one read
Pairs = Sequence[tuple[str, str]]


class ReplicaLost(Exception):
    """The connection to a replica ended before its response did."""


@dataclass(frozen=True)
class ReplyHead:
    """Status and headers of a replica's response; names are in lower case."""

    status: int
    headers: dict[str, str]


class ReplicaConnection:
    """An HTTP/1.1 connection to a replica: one request at a time.

    Heads and chunks are cut from whole reads, since every wait for a line costs the front as much
    as the bytes themselves.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.head = ReplyHead(0, {})
        self.broken = False  # a body ended early
        self._held = b""  # bytes that were read and not used yet

    @classmethod
    async def open(cls, socket: str) -> "ReplicaConnection":
        """Connect to a Unix socket."""
        try:
            return cls(*await asyncio.open_unix_connection(socket, limit=READ))
        except OSError as error:
            raise ReplicaLost(str(error)) from error

    async def request(
        self, method: str, target: str, headers: Pairs, content: bytes = b""
    ) -> ReplyHead:
        """Send a request and read the head of its response."""
        lines = [f"{method} {target} HTTP/1.1", "host: replica", f"content-length: {len(content)}"]
        lines += [f"{name}: {value}" for name, value in headers]
        try:
            self.writer.write("\r\n".join([*lines, "", ""]).encode("latin-1") + content)
            await self.writer.drain()
            first, *rest = (await self._until(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            status = int(first.split(" ", 2)[1])
        except (OSError, ValueError, IndexError) as error:
            raise ReplicaLost(str(error)) from error
        pairs = [line.partition(":") for line in rest]
        found = {name.strip().lower(): value.strip() for name, _, value in pairs}
        self.head = ReplyHead(status, found)
        return self.head

    async def _more(self) -> None:
        data = await self.reader.read(READ)
        if not data:
            raise ReplicaLost("the replica closed the connection")
        self._held += data

    async def _until(self, mark: bytes) -> bytes:
        """The bytes before a mark, which is dropped."""
        while (end := self._held.find(mark)) < 0:
            if len(self._held) > LINE:
                raise ReplicaLost(f"{len(self._held)} bytes without an end of a line")
            await self._more()
        found, self._held = self._held[:end], self._held[end + len(mark) :]
        return found

    async def _exactly(self, size: int) -> bytes:
        while len(self._held) < size:
            await self._more()
        found, self._held = self._held[:size], self._held[size:]
        return found

    async def body(self) -> AsyncIterator[bytes]:
        """The body of the response in the pieces that come; it must be read to its end."""
        try:
            if self.head.headers.get("transfer-encoding") == "chunked":
                async for piece in self._chunks():
                    yield piece
            elif size := int(self.head.headers.get("content-length", "0")):
                yield await self._exactly(size)
        except (OSError, ValueError, ReplicaLost) as error:
            self.broken = True
            raise ReplicaLost(str(error)) from error

    async def _chunks(self) -> AsyncIterator[bytes]:
        """The chunks of a body; those that came together are one piece."""
        pieces: list[bytes] = []
        while size := int((await self._until(b"\r\n")).split(b";")[0], 16):
            pieces.append((await self._exactly(size + 2))[:-2])
            if b"\r\n" not in self._held:
                yield b"".join(pieces)
                pieces = []
        await self._until(b"\r\n")
        if pieces:
            yield b"".join(pieces)

    async def whole_body(self) -> bytes:
        """The whole body."""
        return b"".join([part async for part in self.body()])

    @property
    def reusable(self) -> bool:
        """True when the replica keeps the connection open after the response."""
        return not self.broken and self.head.headers.get("connection", "").lower() != "close"

    def abort(self) -> None:
        """Close at once; a replica that is generating stops."""
        self.writer.transport.abort()


@dataclass(eq=False)
class Replica:
    """One server behind the front."""

    number: int
    socket: str = ""  # path; each start of the process has its own
    ready: bool = False  # accepts requests
    running: int = 0  # requests that the front has sent it
    starts: int = 0
    doubt: asyncio.Event = field(default_factory=asyncio.Event)  # asks for a health check now
    _idle: list[ReplicaConnection] = field(default_factory=list)

    async def connect(self) -> ReplicaConnection:
        """A connection, new or used before."""
        if self._idle:
            return self._idle.pop()
        return await ReplicaConnection.open(self.socket)

    def release(self, connection: ReplicaConnection, socket: str) -> None:
        """Keep a connection for the next request, unless the process is another one now."""
        if connection.reusable and socket == self.socket and self.ready:
            self._idle.append(connection)
        else:
            connection.abort()

    def lost(self) -> None:
        """Send it nothing more until a health check succeeds."""
        self.ready = False
        self.doubt.set()
        for connection in self._idle:
            connection.abort()
        self._idle.clear()

    async def fetch(self, target: str, headers: Pairs, seconds: float) -> tuple[int, bytes]:
        """Status and body of a GET on a connection of its own."""
        try:
            async with asyncio.timeout(seconds):
                connection = await ReplicaConnection.open(self.socket)
                try:
                    head = await connection.request("GET", target, headers)
                    return head.status, await connection.whole_body()
                finally:
                    connection.abort()
        except TimeoutError as error:
            raise ReplicaLost(f"no response within {seconds:g} s") from error

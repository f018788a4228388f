"""A replica as its front sees it: its socket, its connections and its load."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

LINE = 64 << 10  # most bytes of a line of HTTP
Pairs = Sequence[tuple[str, str]]


class ReplicaLost(Exception):
    """The connection to a replica ended before its response did."""


@dataclass(frozen=True)
class ReplyHead:
    """Status and headers of a replica's response; names are in lower case."""

    status: int
    headers: dict[str, str]


class ReplicaConnection:
    """An HTTP/1.1 connection to a replica: one request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.head = ReplyHead(0, {})

    @classmethod
    async def open(cls, socket: str) -> "ReplicaConnection":
        """Connect to a Unix socket."""
        try:
            return cls(*await asyncio.open_unix_connection(socket, limit=LINE))
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
            status = int((await self._line()).split(b" ", 2)[1])
            found = {}
            while line := await self._line():
                name, _, value = line.decode("latin-1").partition(":")
                found[name.strip().lower()] = value.strip()
        except (OSError, ValueError, IndexError, asyncio.IncompleteReadError) as error:
            raise ReplicaLost(str(error)) from error
        self.head = ReplyHead(status, found)
        return self.head

    async def _line(self) -> bytes:
        line = await self.reader.readuntil(b"\r\n")
        return line[:-2]

    async def body(self) -> AsyncIterator[bytes]:
        """The body of the response in the pieces that come; it must be read to its end."""
        try:
            if self.head.headers.get("transfer-encoding") == "chunked":
                while size := int((await self._line()).split(b";")[0], 16):
                    data = await self.reader.readexactly(size + 2)
                    yield data[:-2]
                await self._line()
            elif size := int(self.head.headers.get("content-length", "0")):
                yield await self.reader.readexactly(size)
        except (OSError, ValueError, asyncio.IncompleteReadError) as error:
            raise ReplicaLost(str(error)) from error

    async def whole_body(self) -> bytes:
        """The whole body."""
        return b"".join([part async for part in self.body()])

    @property
    def reusable(self) -> bool:
        """True when the replica keeps the connection open after the response."""
        return self.head.headers.get("connection", "").lower() != "close"

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

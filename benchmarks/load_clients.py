"""Clients of a load test: they stream, leave midway, or send invalid requests; plain sockets."""

import asyncio
import contextlib
import json
import random
from dataclasses import dataclass, field
from typing import Any

PATIENCE = 120.0  # seconds after which a request counts as stuck
LETTERS = "abcdefghijklmnopqrstuvwxyz "
NONSENSE: tuple[tuple[bytes, str], ...] = (  # bodies with content types; each must get a 4xx
    (b"", "application/json"),
    (b"{", "application/json"),
    (b"[]", "application/json"),
    (b"\xff\xfe", "application/json"),
    (b'{"model": NaN}', "application/json"),
    (b"[" * 10_000, "application/json"),
    (b'{"messages": []}', "application/json"),
    (b'{"model": "tiny", "messages": []}', "application/json"),
    (b'{"model": "else", "messages": [{"role": "user", "content": "Hi"}]}', "application/json"),
    (
        b'{"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "temperature": 9}',
        "application/json",
    ),
    (
        b'{"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": -1}',
        "application/json",
    ),
    (
        b'{"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "n": 1e9}',
        "application/json",
    ),
    (
        b'{"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "wish": true}',
        "application/json",
    ),
    (
        b'{"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], '
        b'"logit_bias": {"9999": 1}}',
        "application/json",
    ),
    (b"model=tiny", "application/x-www-form-urlencoded"),
)


@dataclass(frozen=True)
class Wish:
    """One request of a client, and its behaviour."""

    kind: str  # whole, leaving, nonsense
    question: dict[str, Any] = field(default_factory=dict)
    stay: int = 0  # events after which a leaving client disconnects; 0: before the first
    body: bytes = b""
    content_type: str = "application/json"

    @property
    def key(self) -> str:
        """Everything that the answer depends on."""
        return json.dumps(self.question, sort_keys=True)


@dataclass
class Seen:
    """Result of a request."""

    wish: Wish
    status: int = 0
    text: str = ""
    complete: bool = False  # the stream ended with [DONE]
    heads: set[tuple[str, int]] = field(default_factory=set)  # ids and times of its events
    first: float = 0.0  # seconds to the first text
    seconds: float = 0.0
    trouble: str = ""


def questions(count: int, seed: int) -> list[dict[str, Any]]:
    """Different requests, most of them greedy; their prompts share beginnings."""
    noise = random.Random(seed)
    stems = ["".join(noise.choices(LETTERS, k=40)) for _ in range(4)]
    made = []
    for place in range(count):
        ending = "".join(noise.choices(LETTERS, k=noise.randint(1, 60)))
        made.append(
            {
                "model": "tiny",
                "messages": [{"role": "user", "content": noise.choice(stems) + ending}],
                "max_tokens": noise.randint(4, 48),
                "temperature": 0.0 if place % 4 else 0.9,
                "seed": place,
                "stream": True,
            }
        )
    return made


def wishes(asked: list[dict[str, Any]], count: int, seed: int) -> list[Wish]:
    """`count` requests: a tenth invalid, a fifth left midway, the others read to their end."""
    noise = random.Random(seed)
    kinds = ["nonsense"] * (count // 10) + ["leaving"] * (count // 5)
    kinds += ["whole"] * (count - len(kinds))
    noise.shuffle(kinds)
    made = []
    for kind in kinds:
        if kind == "nonsense":
            body, content_type = noise.choice(NONSENSE)
            made.append(Wish(kind, body=body, content_type=content_type))
        else:
            question = noise.choice(asked)
            made.append(Wish(kind, question, noise.randint(0, max(question["max_tokens"] // 2, 1))))
    return made


async def send(port: int, wish: Wish, patience: float = PATIENCE) -> Seen:
    """Send a request and follow its behaviour; never raises."""
    seen = Seen(wish)
    clock = asyncio.get_running_loop().time
    began = clock()
    try:
        async with asyncio.timeout(patience):
            await talk(port, wish, seen, began)
    except TimeoutError:
        seen.trouble = "stuck"
    except (OSError, asyncio.IncompleteReadError, ValueError) as error:
        seen.trouble = f"{type(error).__name__}: {error}"
    seen.seconds = clock() - began
    return seen


async def talk(port: int, wish: Wish, seen: Seen, began: float) -> None:
    """One request on a connection of its own."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        body = wish.body if wish.kind == "nonsense" else json.dumps(wish.question).encode()
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n"
            f"Content-Type: {wish.content_type}\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        writer.write(head.encode() + body)
        await writer.drain()
        if wish.kind == "leaving" and wish.stay == 0:
            return
        line = await reader.readline()
        if not line:
            raise ConnectionError("the server closed the connection without an answer")
        seen.status = int(line.split()[1])
        while (await reader.readline()).strip():
            pass
        await listen(reader, wish, seen, began)
    finally:
        writer.transport.abort()  # disconnect without a shutdown
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def listen(reader: asyncio.StreamReader, wish: Wish, seen: Seen, began: float) -> None:
    """Read events until the end, or until the client leaves."""
    if seen.status != 200:
        await reader.read()
        return
    count = 0
    async for record in events(reader):
        if record is None:
            seen.complete = True
            continue
        if "error" in record:
            seen.trouble = record["error"]["message"]
            continue
        seen.heads.add((record.get("id", ""), record.get("created", 0)))
        for choice in record["choices"]:
            text = choice["delta"].get("content") or ""
            if text and not seen.text:
                seen.first = asyncio.get_running_loop().time() - began
            seen.text += text
        count += 1
        if wish.kind == "leaving" and count >= wish.stay:
            return


async def events(reader: asyncio.StreamReader) -> Any:
    """The records of a chunked stream of events, None for its [DONE]."""
    held = b""
    while (size := int((await reader.readline()).strip() or b"0", 16)) > 0:
        held += await reader.readexactly(size)
        await reader.readexactly(2)
        *blocks, held = held.split(b"\n\n")
        for block in blocks:
            if block.startswith(b"data: "):
                yield None if block == b"data: [DONE]" else json.loads(block[6:])


async def crowd(
    port: int, wanted: list[Wish], clients: int, patience: float = PATIENCE
) -> list[Seen]:
    """Send all requests, `clients` at a time."""
    waiting = iter(wanted)

    async def client() -> list[Seen]:
        return [await send(port, wish, patience) for wish in waiting]

    done = await asyncio.gather(*(client() for _ in range(clients)))
    return [seen for one in done for seen in one]


async def get(port: int, path: str) -> tuple[int, str]:
    """Status and body of a GET."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(
            f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n\r\n".encode()
        )
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        return int(head.split()[1]), body.decode()
    finally:
        writer.close()

"""A server without sockets: the ASGI application on a loop of its own, and a client that may misbehave."""

import asyncio
import json
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from sapwood import LLM
from sapwood.backends.toy import ToyBackend, ToyOutput
from sapwood.server.app import ApiRoutes, make
from sapwood.server.engine_thread import EngineThread
from sapwood.server.limits import Limits
from sapwood.server.settings import ServerSettings
from tests.helpers import byte_tokenizer

T = TypeVar("T")
BOT = byte_tokenizer.tokenizer().token_to_id("<bot>")
HOST = ("host", "127.0.0.1:8000")
JSON = ("content-type", "application/json")


@dataclass
class Script(ToyBackend):
    """A toy that answers every chat with the same text, and anything else like the toy."""

    script: str = ""

    def scores(self, contexts: Sequence[tuple[int, ...]]) -> ToyOutput:
        """Nearly all mass on the next byte of the text, then on its end."""
        rows = super().scores(contexts).rows.copy()
        said = [*byte_tokenizer.text().encode(self.script), byte_tokenizer.EOS]
        for row, context in zip(rows, contexts, strict=True):
            if BOT in context:
                place = len(context) - 1 - max(i for i, token in enumerate(context) if token == BOT)
                row[said[min(place, len(said) - 1)]] += 20.0
        return ToyOutput(np.array(rows))


@dataclass
class Answer:
    """What came back."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        """The error object, which has all four fields and nothing else beside it."""
        record = self.json
        assert set(record) == {"error"}, record
        assert set(record["error"]) == {"message", "type", "param", "code"}
        assert record["error"]["message"]
        found: dict[str, Any] = record["error"]
        return found

    @property
    def events(self) -> list[Any]:
        """The events of a stream; the last one must be [DONE]."""
        return read_events(self.body)


def read_events(body: bytes) -> list[Any]:
    """Events by the rules of the format: each is one data line and an empty one."""
    *blocks, rest = body.split(b"\n\n")
    assert rest == b""
    lines = [block for block in blocks if not block.startswith(b":")]
    assert all(line.startswith(b"data: ") and b"\n" not in line for line in lines)
    assert lines[-1] == b"data: [DONE]"
    return [json.loads(line.removeprefix(b"data: ").decode("utf-8")) for line in lines[:-1]]


@dataclass
class Line:
    """One request under way; the test decides when bytes are sent, read, and when the client leaves."""

    to_app: "asyncio.Queue[dict[str, Any]]" = field(default_factory=asyncio.Queue)
    seen: list[dict[str, Any]] = field(default_factory=list)
    room: asyncio.Semaphore | None = None  # messages that the client will still take; None: all
    delta: asyncio.Event = field(default_factory=asyncio.Event)

    async def receive(self) -> dict[str, Any]:
        """What the application reads."""
        return await self.to_app.get()

    async def send(self, message: Any) -> None:
        """What the application writes."""
        if self.room is not None:
            await self.room.acquire()
        self.seen.append(message)
        self.delta.set()

    def leave(self) -> None:
        """The client goes away."""
        self.to_app.put_nowait({"type": "http.disconnect"})

    async def until(self, count: int) -> None:
        """Wait until this many messages have come."""
        while len(self.seen) < count:
            self.delta.clear()
            await self.delta.wait()


class Served:
    """An application and the loop it runs on."""

    def __init__(self, api: ApiRoutes) -> None:
        self.api = api
        self.app = make(api)
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()
        api.engine_thread.start()

    def close(self) -> None:
        """End loop and worker."""
        self.api.engine_thread.stop()
        self.api.parsers.shutdown()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()

    def run(self, work: Coroutine[Any, Any, T], seconds: float = 60.0) -> T:
        """Do something on the application's loop."""
        return asyncio.run_coroutine_threadsafe(asyncio.wait_for(work, seconds), self.loop).result()

    async def call(
        self, line: Line, method: str, path: str, headers: Sequence[tuple[str, str]]
    ) -> None:
        """Run the application on one request."""
        raw, _, query = path.partition("?")
        scope = {
            "type": "http",
            "method": method,
            "path": raw,
            "raw_path": raw.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "headers": [(name.encode(), value.encode("latin-1")) for name, value in headers],
            "client": ("127.0.0.1", 1),
            "scheme": "http",
            "http_version": "1.1",
        }
        await self.app(scope, line.receive, line.send)

    async def ask(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        headers: Sequence[tuple[str, str]] = (HOST, JSON),
    ) -> Answer:
        """One request of a client that behaves."""
        line = Line()
        line.to_app.put_nowait({"type": "http.request", "body": body, "more_body": False})
        await self.call(line, method, path, headers)
        start = line.seen[0]
        named = {name.decode(): value.decode() for name, value in start["headers"]}
        return Answer(
            start["status"], named, b"".join(message.get("body", b"") for message in line.seen[1:])
        )

    def get(self, path: str, *headers: tuple[str, str]) -> Answer:
        """GET."""
        return self.run(self.ask("GET", path, headers=(HOST, *headers)))

    def post(self, path: str, body: Any, *headers: tuple[str, str]) -> Answer:
        """POST a record, or bytes as they are."""
        sent = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.run(self.ask("POST", path, sent, (HOST, JSON, *headers)))

    def chat(self, **fields: Any) -> Answer:
        """A chat request with defaults that end soon."""
        given = {
            "model": "toy",
            "messages": [{"role": "user", "content": "Hi"}],
            "max_tokens": 8,
            "temperature": 0,
        }
        return self.post("/v1/chat/completions", {**given, **fields})

    def complete(self, **fields: Any) -> Answer:
        """A completion request with defaults that end soon."""
        given = {"model": "toy", "prompt": "Hi", "max_tokens": 8, "temperature": 0}
        return self.post("/v1/completions", {**given, **fields})


def model(script: str | None = None, context: int = 512, recipe: str = "suffix") -> LLM:
    """The toy with a tokenizer of bytes."""
    target = ToyBackend(vocab=byte_tokenizer.SIZE, context=context)
    if script is not None:
        target = Script(vocab=byte_tokenizer.SIZE, context=context, script=script)
    return LLM(target, recipe, text=byte_tokenizer.text())


@contextmanager
def served(
    llm: LLM | None = None,
    recipe: str = "suffix",
    limits: dict[str, Any] | None = None,
    engine_thread: Callable[[LLM], EngineThread] | None = None,
    **settings: Any,
) -> Iterator[Served]:
    """A server on the toy."""
    made = llm or model(recipe=recipe)
    bounds = Limits().changed(limits or {})
    working = engine_thread(made) if engine_thread else EngineThread(made, bounds.queue)
    one = Served(ApiRoutes(working, ServerSettings(limits=bounds, **settings), "toy", recipe))
    try:
        yield one
    finally:
        one.close()


@dataclass
class NormalizedScript(Script):
    """The same script, as laws that sum to one: drafters read them as chances."""

    def scores(self, contexts: Any) -> ToyOutput:
        """Logarithms of laws."""
        rows = super().scores(contexts).rows
        return ToyOutput(rows - np.log(np.exp(rows).sum(-1, keepdims=True)))

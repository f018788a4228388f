"""Who comes, waits, leaves and is cut: queues, deadlines, slow and vanished readers, draining, logs."""

import asyncio
import json
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from sapwood import LLM
from sapwood.backends.toy import ToyBackend, ToyOutput
from sapwood.server.engine_thread import EngineThread
from tests.helpers import byte_tokenizer
from tests.helpers.asgi_client import HOST, JSON, Line, Served, model, served

CHAT = "/v1/chat/completions"
SECRET = "tell-nobody-of-this"

pytestmark = pytest.mark.usefixtures("own_cache")


@dataclass
class Slow(ToyBackend):
    """A toy that takes its time."""

    seconds: float = 0.02

    def scores(self, contexts: Sequence[tuple[int, ...]]) -> ToyOutput:
        time.sleep(self.seconds)
        return super().scores(contexts)


def slow(seconds: float = 0.02) -> LLM:
    return LLM(
        Slow(vocab=byte_tokenizer.SIZE, context=512, seconds=seconds),
        "plain",
        text=byte_tokenizer.text(),
    )


def body(**fields: Any) -> bytes:
    given = {"model": "toy", "messages": [{"role": "user", "content": SECRET}], "ignore_eos": True}
    return json.dumps({**given, **fields}).encode()


async def begin(
    one: Served, sent: bytes, *headers: tuple[str, str]
) -> tuple[Line, "asyncio.Task[None]"]:
    """A request under way."""
    line = Line()
    line.to_app.put_nowait({"type": "http.request", "body": sent, "more_body": False})
    return line, asyncio.ensure_future(one.call(line, "POST", CHAT, (HOST, JSON, *headers)))


async def until(condition: Any, seconds: float = 60.0) -> None:
    """Wait for something to become true."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.005)


def idle(one: Served) -> bool:
    """Nothing is held by anybody."""
    seen = one.api.engine_thread.snapshot()
    return (
        one.api.dispatcher.busy == 0
        and seen.running + seen.prefilling + seen.waiting == 0
        and seen.used == 0
    )


# ---------------------------------------------------------------------------------------- leaving
@pytest.mark.parametrize("stream", [True, False])
def test_who_leaves_is_forgotten_at_once(stream: bool) -> None:
    with served(slow(), "plain") as one:

        async def leave() -> Line:
            line, task = await begin(one, body(stream=stream, n=2))
            await until(lambda: one.api.engine_thread.snapshot().running)
            if stream:
                await line.until(4)
            line.leave()
            await asyncio.wait_for(task, 60)
            await until(lambda: idle(one), 60)
            return line

        line = one.run(leave())
        assert not any(
            message.get("type") == "http.response.body" and not message.get("more_body")
            for message in line.seen
        )
        assert one.chat(max_tokens=2).status == 200


def test_leaving_after_any_number_of_events_frees_everything() -> None:
    with served(model("abcdefgh", recipe="plain"), "plain") as one:

        async def leave(count: int) -> None:
            line, task = await begin(one, body(stream=True, max_tokens=12))
            await line.until(count)
            line.leave()
            await asyncio.wait_for(task, 60)
            await until(lambda: idle(one), 60)

        for count in range(1, 12):
            one.run(leave(count))
        assert one.chat(max_tokens=20).json["choices"][0]["message"]["content"] == "abcdefgh"


def test_leaving_in_the_middle_of_the_body() -> None:
    with served() as one:

        async def leave() -> Line:
            line = Line()
            line.to_app.put_nowait({"type": "http.request", "body": b'{"mod', "more_body": True})
            line.leave()
            await one.call(line, "POST", CHAT, (HOST, JSON))
            return line

        assert one.run(leave()).seen == []


@pytest.mark.parametrize("cadence", [0.0, 5.0])
def test_a_reader_that_takes_nothing_is_cut(cadence: float) -> None:
    with served(slow(0.002), "plain", limits={"write_seconds": 0.3}, cadence_ms=cadence) as one:

        async def stall() -> float:
            line = Line(room=asyncio.Semaphore(3))
            line.to_app.put_nowait(
                {"type": "http.request", "body": body(stream=True), "more_body": False}
            )
            began = time.monotonic()
            await one.call(line, "POST", CHAT, (HOST, JSON))
            assert len(line.seen) == 3
            await until(lambda: idle(one), 60)
            return time.monotonic() - began

        assert one.run(stall()) < 10


# ---------------------------------------------------------------------------------------- waiting
def test_a_full_queue_says_when_to_come_back() -> None:
    with served(
        slow(), "plain", engine_thread=lambda llm: EngineThread(llm, 2, max_requests=2)
    ) as one:

        async def flood() -> list[int]:
            started = [await begin(one, body(max_tokens=400)) for _ in range(8)]
            await until(lambda: any(line.seen for line, _ in started))
            refused = [line for line, _ in started if line.seen]
            for line in refused:
                named = {name.decode().lower(): value for name, value in line.seen[0]["headers"]}
                assert named["retry-after"] == b"1"
                record = json.loads(line.seen[1]["body"])["error"]
                assert (record["type"], record["code"]) == (
                    "rate_limit_error",
                    "rate_limit_exceeded",
                )
            for line, _ in started:
                line.leave()
            await asyncio.gather(*(task for _, task in started))
            await until(lambda: idle(one))
            return [line.seen[0]["status"] for line in refused]

        assert set(one.run(flood())) == {429}
        assert one.chat(max_tokens=1).status == 200


def test_a_key_may_not_take_all_places() -> None:
    keys = ("first-key-of-tests", "second-key-of-tests")
    first, second = (("authorization", f"Bearer {key}") for key in keys)
    with served(slow(), "plain", keys=keys, limits={"per_key": 2}) as one:

        async def pool() -> tuple[int, int]:
            held = [await begin(one, body(stream=True), first) for _ in range(2)]
            await until(lambda: one.api.dispatcher.busy == 2)
            third, task = await begin(one, body(max_tokens=1), first)
            await task
            other, task = await begin(one, body(max_tokens=1), second)
            await task
            for line, _ in held:
                line.leave()
            await asyncio.gather(*(task for _, task in held))
            return third.seen[0]["status"], other.seen[0]["status"]

        assert one.run(pool()) == (429, 200)
        assert one.api.dispatcher.running == {}


def test_without_keys_only_the_queue_limits() -> None:
    with served(model("ab"), limits={"per_key": 1}) as one:

        async def pool() -> list[int]:
            started = [await begin(one, body(max_tokens=2)) for _ in range(8)]
            await asyncio.gather(*(task for _, task in started))
            return [line.seen[0]["status"] for line, _ in started]

        assert one.run(pool()) == [200] * 8


# ---------------------------------------------------------------------------------------- time
def test_a_request_has_a_deadline() -> None:
    with served(slow(), "plain", limits={"request_seconds": 0.4}) as one:
        late = one.post(CHAT, body())
        assert (late.status, late.error["code"]) == (408, "request_timeout")
        assert late.headers["x-should-retry"] == "false"
        stream = one.post(CHAT, body(stream=True))
        assert stream.status == 200
        assert stream.events[-1]["error"]["code"] == "request_timeout"
        one.run(until(lambda: idle(one)))


# ---------------------------------------------------------------------------------- failures inside
def test_a_failure_in_the_engine_hits_its_request_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    with served(model("fine"), limits={}) as one:
        dispatcher = one.api.dispatcher
        good = dispatcher.deltas

        def broken(order: Any, finished: Any = ()) -> Any:
            raise RuntimeError(f"{SECRET} at 0x7f00")

        monkeypatch.setattr(dispatcher, "deltas", broken)
        failed = one.chat()
        monkeypatch.setattr(dispatcher, "deltas", good)
        assert (failed.status, failed.error["code"]) == (500, "internal_error")
        assert SECRET not in failed.body.decode()
        assert one.chat().json["choices"][0]["message"]["content"] == "fine"


# ---------------------------------------------------------------------------------------- the end
def test_draining_refuses_the_new_and_finishes_the_old() -> None:
    with served(slow(), "plain") as one:

        async def drain() -> tuple[int, int, list[Any]]:
            line, task = await begin(one, body(stream=True, max_tokens=30))
            await line.until(3)
            one.api.dispatcher.draining = True
            health = await one.ask("GET", "/health")
            new, late = await begin(one, body(max_tokens=1))
            await late
            await task
            return health.status, new.seen[0]["status"], line.seen

        health, new, seen = one.run(drain())
        assert (health, new) == (503, 503)
        assert one.get("/health/live").status == 200
        assert one.get("/health").json == {"status": "draining"}
        assert b"[DONE]" in b"".join(message.get("body", b"") for message in seen)
        one.api.dispatcher.draining = False


def test_what_outlasts_the_drain_is_told_so() -> None:
    with served(slow(), "plain") as one:

        async def cut() -> tuple[bytes, Any]:
            stream, first = await begin(one, body(stream=True))
            whole, second = await begin(one, body())
            await stream.until(3)
            one.api.dispatcher.abort()
            await asyncio.gather(first, second)
            return b"".join(message.get("body", b"") for message in stream.seen), whole.seen

        streamed, whole = one.run(cut())
        assert b'"code":"unavailable"' in streamed
        assert whole[0]["status"] == 503
        one.run(until(lambda: idle(one)))


# ---------------------------------------------------------------------------------------- logs
def test_a_line_per_request_and_never_what_was_said(caplog: pytest.LogCaptureFixture) -> None:
    key = "a-key-of-tests"
    with (
        served(model("reply"), keys=(key,)) as one,
        caplog.at_level(logging.INFO, "sapwood.server"),
    ):
        good = one.post(CHAT, body(max_tokens=5), ("authorization", f"Bearer {key}"))
        one.post(CHAT, body(), ("authorization", f"Bearer {SECRET}"))
        one.get(f"/{SECRET}?q={SECRET}", ("authorization", f"Bearer {key}"), ("user-agent", SECRET))
        lines = [
            json.loads(record.getMessage())
            for record in caplog.records
            if record.name == "sapwood.server"
        ]
    assert [line["status"] for line in lines] == [200, 401, 404]
    assert lines[0]["id"] == good.headers["x-request-id"]
    assert (lines[0]["route"], lines[0]["completion_tokens"]) == (CHAT, 5)
    assert lines[0]["prompt_tokens"] > len(SECRET)
    assert lines[0]["tenant"] == lines[2]["tenant"] != lines[1]["tenant"] == ""
    assert lines[2]["route"] == ""
    text = caplog.text
    assert SECRET not in text
    assert key not in text
    assert "reply" not in text

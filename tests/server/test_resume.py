"""A response that is cut at any frame goes on elsewhere, byte for byte."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from sapwood.core.sampling import Sampling
from sapwood.engine.prefill import Prefill
from sapwood.engine.request import Request
from sapwood.errors import OutOfMemory
from sapwood.server.errors import ApiError
from sapwood.server.resume import (
    FRAMES,
    RESUME,
    SECRET,
    TENANT,
    Continuation,
    FrameKind,
    FrameReader,
    decode_head,
    encode_continuation,
    frame,
)
from tests.helpers.asgi_client import Answer, Served, model, read_events, served

pytestmark = pytest.mark.usefixtures("own_cache")
FRONT = "the-secret-of-a-front"
USER = [{"role": "user", "content": "Tell me something."}]
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 6}, "count": {"type": "integer"}},
    "required": ["name", "count"],
    "additionalProperties": False,
}
TOOL = {
    "type": "function",
    "function": {"name": "f", "parameters": SCHEMA},
}
CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
WARM = {"model": "toy", "max_tokens": 24, "temperature": 1}


@pytest.fixture(scope="module")
def replicas(own_cache: None) -> Iterator[list[Served]]:
    """Two replicas of one front; plain decoding sends one token at a time."""
    with (
        served(recipe="plain", front=FRONT) as first,
        served(recipe="plain", front=FRONT) as second,
    ):
        yield [first, second]


@dataclass
class Kept:
    """All that a front keeps of a response, and all that its client has got."""

    opening: bytes = b""
    groups: list[bytes] = field(default_factory=list)
    sent: bytes = b""
    status: int = 0
    complete: bool = False

    def take(self, kind: FrameKind, record: bytes, body: bytes) -> None:
        """Take one frame."""
        if kind is FrameKind.OPEN:
            self.opening = record
        elif kind is FrameKind.PART and record:
            self.groups.append(record)
        elif kind is FrameKind.RESULT:
            self.status = decode_head(record).status
        self.complete = kind in (FrameKind.END, FrameKind.RESULT)
        self.sent += body

    def continuation(self) -> bytes:
        """The record for the next replica."""
        record: bytes = encode_continuation(Continuation(self.opening, self.groups, 1.0))
        return record


def ask(one: Served, path: str, body: dict[str, Any], kept: Kept | None = None) -> Answer:
    """A request of the front, which may resume a response."""
    before = b"" if kept is None else kept.continuation()
    headers = ((SECRET, FRONT), (TENANT, "t"), (RESUME, str(len(before))))
    return one.post(path, before + json.dumps(body).encode(), *headers)


def frames(answer: Answer) -> list[tuple[FrameKind, bytes, bytes]]:
    """The frames of a response."""
    assert (answer.status, answer.headers["content-type"]) == (200, FRAMES), answer.body
    return list(FrameReader().feed(answer.body))


def neutral(sent: bytes) -> bytes:
    """The bytes without counts that depend on a server's cache; choices one after another."""
    sent = re.sub(rb'"(cached_tokens|cache_read_input_tokens|input_tokens)":\d+', b'"n":0', sent)
    events = sent.split(b"\n\n")
    events.sort(key=choice_of)
    return b"\n\n".join(events)


def choice_of(event: bytes) -> int:
    """The choice that an event belongs to; the last events have none."""
    record = json.loads(event[6:]) if event.startswith(b"data: {") else {}
    choices = record.get("choices") or [{"index": 99}]
    return int(choices[0]["index"])


CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "greedy": (CHAT, {**WARM, "messages": USER, "temperature": 0}),
    "no seed": (CHAT, {**WARM, "messages": USER}),
    "penalties": (
        CHAT,
        {
            **WARM,
            "messages": USER,
            "seed": 5,
            "presence_penalty": 1.5,
            "frequency_penalty": 1,
            "repetition_penalty": 1.3,
            "logit_bias": {"65": 2},
        },
    ),
    "schema": (
        CHAT,
        {
            **WARM,
            "messages": USER,
            "seed": 7,
            "max_tokens": 60,
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "a", "schema": SCHEMA},
            },
        },
    ),
    "logprobs and choices": (
        CHAT,
        {
            **WARM,
            "messages": USER,
            "n": 3,
            "seed": 2,
            "logprobs": True,
            "top_logprobs": 2,
            "max_tokens": 8,
        },
    ),
    "tool calls": (
        CHAT,
        {
            **WARM,
            "messages": USER,
            "seed": 3,
            "max_tokens": 90,
            "tools": [TOOL],
            "tool_choice": "required",
        },
    ),
    "stop strings": (
        COMPLETIONS,
        {**WARM, "prompt": "a", "seed": 4, "stop": ["e", "zz"], "max_tokens": 60},
    ),
    "prompts": (
        COMPLETIONS,
        {
            **WARM,
            "prompt": ["ab", "cd"],
            "n": 2,
            "seed": 4,
            "logprobs": 1,
            "echo": True,
            "max_tokens": 5,
        },
    ),
    "prediction": (
        CHAT,
        {**WARM, "messages": USER, "seed": 1, "prediction": {"type": "content", "content": "abc"}},
    ),
    "responses": ("/v1/responses", {"model": "toy", "input": "Hi", "max_output_tokens": 20}),
    "messages": ("/v1/messages", {"model": "toy", "messages": USER, "max_tokens": 20}),
}


@pytest.mark.parametrize("streams", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("case", CASES)
def test_a_response_goes_on_elsewhere(replicas: list[Served], case: str, streams: bool) -> None:
    path, fields = CASES[case]
    body = {**fields, "stream": streams}
    if streams and path in (CHAT, COMPLETIONS):
        body["stream_options"] = {"include_usage": True}
    whole = frames(ask(replicas[0], path, body))
    unbroken = Kept()
    for one in whole:
        unbroken.take(*one)
    assert unbroken.complete
    # after the first frame, in the middle, and before the last one
    for cut in sorted({1, len(whole) // 3, len(whole) // 2, len(whole) - 2, len(whole) - 1}):
        kept = Kept()
        for one in whole[:cut]:
            kept.take(*one)
        for one in frames(ask(replicas[1], path, body, kept)):
            kept.take(*one)
        assert kept.complete
        assert neutral(kept.sent) == neutral(unbroken.sent), f"cut after {cut} of {len(whole)}"
        if not streams:
            assert kept.status == 200


def test_a_response_may_be_cut_twice(replicas: list[Served]) -> None:
    path, body = CASES["schema"]
    body = {**body, "stream": True}
    whole = frames(ask(replicas[0], path, body))
    kept = Kept()
    for one in whole[:4]:
        kept.take(*one)
    for one in frames(ask(replicas[1], path, body, kept))[:3]:
        kept.take(*one)
    for one in frames(ask(replicas[0], path, body, kept)):
        kept.take(*one)
    assert kept.sent == b"".join(part for _, _, part in whole)


@pytest.fixture(scope="module", params=["suffix", "auto"])
def drafting(request: pytest.FixtureRequest, own_cache: None) -> Iterator[list[Served]]:
    """Two servers that draft."""
    recipe = request.param
    with served(recipe=recipe, front=FRONT) as first, served(recipe=recipe, front=FRONT) as second:
        yield [first, second]


@pytest.mark.parametrize("case", ["greedy", "no seed", "penalties", "schema", "tool calls"])
def test_trees_change_the_events_but_not_the_text(case: str, drafting: list[Served]) -> None:
    path, body = CASES[case]
    body = {**body, "stream": True, "max_tokens": 90}
    whole = frames(ask(drafting[0], path, body))
    for cut in range(1, len(whole), 15):
        kept = Kept()
        for one in whole[:cut]:
            kept.take(*one)
        for one in frames(ask(drafting[1], path, body, kept)):
            kept.take(*one)
        assert joined(kept.sent) == joined(b"".join(part for _, _, part in whole))


def joined(sent: bytes) -> tuple[Any, ...]:
    """Text, calls and finish reason of a stream, and the fields that all its events share."""
    events = read_events(sent)
    [heads] = {(one["id"], one["created"], one["system_fingerprint"]) for one in events}
    deltas = [one["choices"][0]["delta"] for one in events]
    calls = [call for delta in deltas for call in delta.get("tool_calls", ())]
    return (
        heads,
        "".join(delta.get("content") or "" for delta in deltas),
        [call["id"] for call in calls if "id" in call],
        "".join(call["function"]["arguments"] for call in calls),
        events[-1]["choices"][0]["finish_reason"],
    )


def test_statistics_count_both_halves(replicas: list[Served]) -> None:
    body = {**CASES["penalties"][1], "speculation": {"recipe": "plain"}, "stream": False}
    whole = frames(ask(replicas[0], CHAT, body))
    kept = Kept()
    for one in whole[:9]:
        kept.take(*one)
    result = json.loads(frames(ask(replicas[1], CHAT, body, kept))[-1][2])
    assert result["speculation"]["passes"] == result["usage"]["completion_tokens"] == 24


def test_a_resumed_request_joins_no_prefill_of_others() -> None:
    fresh = Request((1, 2, 3), Sampling())
    begun = Request((1, 2, 3), Sampling(), output_tokens=[4])
    assert Prefill([fresh]).serves(Request((1, 2, 3), Sampling()))
    assert not Prefill([fresh]).serves(begun)
    assert not Prefill([begun]).serves(fresh)
    assert Prefill([begun]).tokens == [1, 2, 3]


def test_only_the_front_may_resume(replicas: list[Served]) -> None:
    body = json.dumps({**WARM, "messages": USER}).encode()
    refused = replicas[0].post(CHAT, body, (SECRET, "a guess"), (RESUME, "0"))
    assert refused.status == 403
    ordinary = replicas[0].post(CHAT, body, (RESUME, "0"))  # without the secret it means nothing
    assert ordinary.headers["content-type"] == "application/json"
    with served() as alone:  # a server without a front has no secret that could be guessed
        assert alone.post(CHAT, body, (SECRET, ""), (RESUME, "0")).status == 403


def test_a_front_needs_no_key_of_its_own() -> None:
    with served(keys=("a-key-of-a-client",), front=FRONT) as one:
        assert one.chat().status == 401
        assert frames(ask(one, CHAT, {**WARM, "messages": USER}))


def test_errors_before_the_first_token_have_their_status(replicas: list[Served]) -> None:
    answer = ask(replicas[0], CHAT, {**WARM, "messages": USER, "temperature": 9})
    assert answer.status == 400
    assert "temperature" in answer.error["message"]
    broken = replicas[0].post(CHAT, b"xx{}", (SECRET, FRONT), (RESUME, "2"))
    assert (broken.status, broken.error["message"]) == (400, "the continuation cannot be read")


@pytest.mark.parametrize("streams", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize(
    ("error", "complete"), [(OutOfMemory("full"), False), (ApiError(408, "late"), True)]
)
def test_a_failure_that_another_replica_may_not_have_ends_the_frames_early(
    error: Exception, complete: bool, streams: bool
) -> None:
    with served(model("a text"), front=FRONT) as one:
        good = one.api.dispatcher.deltas

        async def failing(parsed: Any, finished: Any = ()) -> Any:
            async for delta in good(parsed, finished):
                yield delta
                raise error

        one.api.dispatcher.deltas = failing  # type: ignore[method-assign]
        kept = Kept()
        for each in frames(ask(one, CHAT, {**WARM, "messages": USER, "stream": streams})):
            kept.take(*each)
        assert kept.complete is complete
        assert (b"late" in kept.sent) is complete
        if complete and not streams:
            assert kept.status == 408


def test_frames_may_be_split_anywhere() -> None:
    made = [
        frame(FrameKind.OPEN, [1], b"abc"),
        frame(FrameKind.PART, None, b""),
        frame(FrameKind.END),
    ]
    data = b"".join(made)
    for size in (1, 3, 8, 100):
        reader = FrameReader()
        parts = [data[at : at + size] for at in range(0, len(data), size)]
        found = [one for part in parts for one in reader.feed(part)]
        assert [(kind, body) for kind, _, body in found] == [
            (FrameKind.OPEN, b"abc"),
            (FrameKind.PART, b""),
            (FrameKind.END, b""),
        ]

"""Streamed answers: the same in pieces, usage, characters of several bytes, stop strings, padding."""

from collections.abc import Iterator

import msgspec
import pytest

from sapwood.server.openai import response_schema
from tests.helpers.api_answers import joined, said
from tests.helpers.asgi_client import Served, model, served

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture(scope="module")
def toy(own_cache: None) -> Iterator[Served]:
    with served(recipes=("suffix", "bild")) as one:
        yield one


def test_a_stream_says_the_same_in_pieces(toy: Served) -> None:
    whole = toy.chat(max_tokens=20).json
    answer = toy.chat(max_tokens=20, stream=True)
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = answer.events
    assert all(msgspec.convert(event, response_schema.ChatChunk) for event in events)
    assert len({event["id"] for event in events}) == 1
    assert events[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    ended = whole["choices"][0]["finish_reason"]
    assert events[-1]["choices"][0] == {
        "index": 0,
        "delta": {},
        "logprobs": None,
        "finish_reason": ended,
    }
    assert [event["choices"][0]["finish_reason"] for event in events[:-1]] == [None] * (
        len(events) - 1
    )
    assert joined(events) == whole["choices"][0]["message"]["content"]
    assert not any("usage" in event for event in events)


def test_usage_comes_last_and_is_null_before(toy: Served) -> None:
    events = toy.chat(stream=True, n=2, stream_options={"include_usage": True}).events
    assert [event["usage"] for event in events[:-1]] == [None] * (len(events) - 1)
    assert events[-1]["choices"] == []
    assert events[-1]["usage"] == toy.chat(n=2).json["usage"]
    assert {choice["index"] for event in events for choice in event["choices"]} == {0, 1}
    assert joined(events, 0) == joined(events, 1) != ""


def test_streamed_logprobs_and_texts(toy: Served) -> None:
    whole = toy.complete(logprobs=2).json["choices"][0]
    events = toy.complete(logprobs=2, stream=True).events
    assert "".join(event["choices"][0]["text"] for event in events) == whole["text"]
    logs = [event["choices"][0]["logprobs"] for event in events if event["choices"][0]["logprobs"]]
    for column in ("tokens", "token_logprobs", "text_offset"):
        assert [item for log in logs for item in log[column]] == whole["logprobs"][column]
    assert events[-1]["choices"][0]["finish_reason"] == "length"
    echoed = toy.complete(stream=True, echo=True).events
    assert "".join(event["choices"][0]["text"] for event in echoed) == "Hi" + whole["text"]


HARD = "naïve 漢字 — 👩‍👩‍👧 «stop» \u2028end"


@pytest.mark.parametrize("recipe", ["plain", "suffix"])
def test_characters_of_several_bytes_survive_a_stream(recipe: str) -> None:
    with served(model(HARD, recipe=recipe), recipe=recipe) as one:
        for _ in range(2):
            events = one.chat(max_tokens=100, stream=True).events
            assert joined(events) == HARD
            assert "\ufffd" not in joined(events)


@pytest.mark.parametrize("stop", ["👩‍👧", "字 —", "»", "«stop»", "end", "k" * 3])
def test_stop_strings_are_found_wherever_tokens_split_them(stop: str) -> None:
    with served(model(HARD)) as one:
        wanted = HARD.partition(stop)[0]
        for _ in range(2):
            whole = one.chat(max_tokens=100, stop=[stop, "never"], logprobs=True).json["choices"][0]
            events = one.chat(max_tokens=100, stop=stop, stream=True).events
            assert joined(events) == whole["message"]["content"] == wanted
            assert whole["finish_reason"] == "stop"


# extensions
def test_padded_events_have_even_sizes(toy: Served) -> None:
    answer = toy.chat(stream=True, stream_options={"include_obfuscation": True})
    sizes = {len(block.removeprefix(b"data: ")) % 256 for block in answer.body.split(b"\n\n")[:-2]}
    assert sizes == {0}
    assert joined(answer.events) == said(toy.chat())[0]


def test_a_fixed_cadence_says_the_same(toy: Served) -> None:
    with served(cadence_ms=20.0) as paced:
        events = paced.chat(
            stream=True, n=2, max_tokens=20, stream_options={"include_usage": True}
        ).events
        assert joined(events, 1) == joined(events, 0) == said(toy.chat(max_tokens=20))[0]
        assert events[-1]["usage"] == toy.chat(n=2, max_tokens=20).json["usage"]
        assert all("obfuscation" in event for event in events)

"""Schemas, other formats and tool calls through the API."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.helpers.api_answers import HI, joined, said
from tests.helpers.asgi_client import Served, model, served

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture(scope="module")
def toy(own_cache: None) -> Iterator[Served]:
    with served(recipes=("suffix", "bild")) as one:
        yield one


SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 5},
        "age": {"type": "integer", "minimum": 0, "maximum": 9},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Paris", "Rome"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'


@pytest.mark.parametrize("temperature", [0, 1])
@pytest.mark.parametrize("stream", [False, True])
def test_a_schema_is_kept(toy: Served, temperature: float, stream: bool) -> None:
    wanted = {
        "type": "json_schema",
        "json_schema": {"name": "person", "schema": SCHEMA, "strict": True},
    }
    for seed in range(3):
        options = {
            "temperature": temperature,
            "seed": seed,
            "max_tokens": 200,
            "response_format": wanted,
        }
        answer = toy.chat(stream=stream, **options)
        record = json.loads(joined(answer.events) if stream else said(answer)[0])
        assert set(record) == {"name", "age"}
        assert record["age"] in range(10)
        assert len(record["name"]) <= 5


def test_other_formats_are_kept_too(toy: Served) -> None:
    digits = toy.complete(response_format={"type": "regex", "regex": "[0-9]{4}"}).json["choices"][
        0
    ]["text"]
    assert len(digits) == 4
    assert digits.isdecimal()
    assert said(toy.chat(response_format={"type": "text"})) == said(toy.chat())
    whole = toy.chat(response_format={"type": "json_object"}, max_tokens=3).json["choices"][0]
    assert whole["message"]["content"].startswith("{")


def called(events: list[Any]) -> list[Any]:
    """The pieces of tool calls in a stream."""
    deltas = [event["choices"][0]["delta"] for event in events if event["choices"]]
    return [piece for delta in deltas for piece in delta.get("tool_calls", [])]


@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "weather"}}]
)
def test_a_call_that_is_demanded(toy: Served, choice: Any) -> None:
    options = {
        "tools": [TOOL],
        "tool_choice": choice,
        "parallel_tool_calls": False,
        "max_tokens": 200,
    }
    found = toy.chat(**options).json["choices"][0]
    assert found["finish_reason"] == "tool_calls"
    assert found["message"]["content"] is None
    [call] = found["message"]["tool_calls"]
    assert (call["type"], call["function"]["name"]) == ("function", "weather")
    assert json.loads(call["function"]["arguments"])["city"] in ("Paris", "Rome")
    events = toy.chat(stream=True, **options).events
    first, *rest = called(events)
    assert (first["index"], first["type"]) == (0, "function")
    assert first["function"]["name"] == call["function"]["name"]
    assert rest  # as it was written
    assert all(set(piece) == {"index", "function"} for piece in rest)
    written = "".join(piece["function"]["arguments"] for piece in (first, *rest))
    assert written == call["function"]["arguments"]
    assert events[-1]["choices"][0]["finish_reason"] == "tool_calls"
    assert joined(events) == ""


@pytest.mark.parametrize("length", [5, 20, 45, 60, 70])
def test_a_call_cut_by_length_leaves_no_markup(toy: Served, length: int) -> None:
    options = {"tools": [TOOL], "tool_choice": "required", "max_tokens": length}
    found = toy.chat(**options).json["choices"][0]
    assert found["finish_reason"] == "length"
    assert found["message"]["content"] is None
    calls = found["message"].get("tool_calls", [])
    assert bool(calls) == (length > 40)
    events = toy.chat(stream=True, **options).events
    assert joined(events) == ""
    assert events[-1]["choices"][0]["finish_reason"] == "length"
    written = "".join(piece["function"]["arguments"] for piece in called(events))
    assert written == "".join(call["function"]["arguments"] for call in calls)


def test_a_call_beside_a_format_and_of_a_strict_function(toy: Served) -> None:
    for fields in (
        {"response_format": {"type": "json_object"}},
        {"tools": [{**TOOL, "function": {**TOOL["function"], "strict": True}}]},
    ):
        with served(model(CALL, recipe="plain"), "plain") as one:
            options = {"tools": [TOOL], "max_tokens": 200, **fields}
            [whole] = one.chat(**options).json["choices"][0]["message"]["tool_calls"]
            pieces = called(one.chat(stream=True, **options).events)
            assert len(pieces) > 2
            written = "".join(piece["function"]["arguments"] for piece in pieces)
            assert written == whole["function"]["arguments"] == '{"city": "Rome"}'


def test_a_call_after_some_text_is_found_in_a_stream() -> None:
    with served(model(f"Let me < look.{CALL}", recipe="plain"), "plain") as one:
        options = {"tools": [TOOL], "max_tokens": 200}
        found = one.chat(**options).json["choices"][0]["message"]
        assert found["content"] == "Let me < look."
        assert json.loads(found["tool_calls"][0]["function"]["arguments"]) == {"city": "Rome"}
        events = one.chat(stream=True, **options).events
        assert joined(events) == "Let me < look."
        assert (
            len([event for event in events if event["choices"][0]["delta"].get("content")]) > 3
        )  # as it came
        assert [event for event in events if "tool_calls" in event["choices"][0]["delta"]]


def test_text_that_only_looks_like_a_call_stays_text() -> None:
    words_ = "Write <tool_call> like this."
    with served(model(words_)) as one:
        options = {"tools": [TOOL], "max_tokens": 200}
        assert said(one.chat(**options)) == [words_]
        assert joined(one.chat(stream=True, **options).events) == words_
        assert said(one.chat(tools=[TOOL], tool_choice="none", max_tokens=200)) == [words_]


def test_calls_and_their_results_may_be_part_of_a_conversation(toy: Served) -> None:
    call = {
        "id": "call_1",
        "type": "function",
        "function": {"name": "weather", "arguments": '{"city": "Rome"}'},
    }
    history = [
        *HI,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "Rain."},
    ]
    assert toy.chat(messages=history, tools=[TOOL]).status == 200
    assert toy.chat(messages=history).status == 200

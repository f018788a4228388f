"""The Responses API: inputs, tools, formats, and events with sequence numbers."""

import json
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.helpers.api_answers import said
from tests.helpers.asgi_client import Answer, Served, model, served
from tests.helpers.named_events import fail_after_one, named_events

pytestmark = pytest.mark.usefixtures("own_cache")
PATH = "/v1/responses"
SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "name": "weather", "parameters": SCHEMA}
FORCED = {"tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False}
CALL = {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": '{"city":"Rome"}'}


@pytest.fixture(scope="module")
def toy(own_cache: None) -> Iterator[Served]:
    with served() as one:
        yield one


def ask(one: Served, **fields: Any) -> Answer:
    given = {"model": "toy", "input": "Hi", "temperature": 0, "max_output_tokens": 8}
    return one.post(PATH, {**given, **fields})


def text_of(answer: Answer) -> str:
    assert answer.status == 200, answer.body
    [message] = answer.json["output"]
    [part] = message["content"]
    assert (message["type"], part["type"]) == ("message", "output_text")
    return str(part["text"])


def test_a_response_has_the_text_and_usage_of_the_chat(toy: Served) -> None:
    answer = ask(toy)
    chat = toy.chat(ignore_eos=None)
    assert text_of(answer) == said(chat)[0]
    record = answer.json
    used = chat.json["usage"]
    assert record["usage"]["input_tokens"] == used["prompt_tokens"]
    assert record["usage"]["output_tokens"] == used["completion_tokens"]
    assert record["usage"]["total_tokens"] == used["total_tokens"]
    assert (record["object"], record["model"], record["error"]) == ("response", "toy", None)
    assert record["id"].startswith("resp_")


def test_a_limit_leaves_it_incomplete(toy: Served) -> None:
    for stream in (False, True):
        answer = ask(toy, max_output_tokens=2, stream=stream)
        record = named_events(answer.body)[-1]["response"] if stream else answer.json
        assert record["status"] == record["output"][0]["status"] == "incomplete"
        assert record["incomplete_details"] == {"reason": "max_output_tokens"}


INPUTS: list[tuple[dict[str, Any], list[dict[str, Any]]]] = [
    ({"input": "Hi", "instructions": "Be."}, [
        {"role": "system", "content": "Be."}, {"role": "user", "content": "Hi"}]),
    ({"input": [{"role": "developer", "content": "Be."}, {"role": "user", "content": [
        {"type": "input_text", "text": "H"}, {"type": "input_text", "text": "i"}]}]}, [
        {"role": "developer", "content": "Be."}, {"role": "user", "content": "Hi"}]),
    ({"input": [
        {"type": "message", "role": "user", "content": "Rain?", "id": "m", "status": "completed"},
        {"type": "reasoning", "summary": []},
        {"role": "assistant", "content": [{"type": "output_text", "text": "See:", "annotations": []}]},
        CALL, {**CALL, "call_id": "c2"},
        {"type": "function_call_output", "call_id": "c1", "output": "wet"},
        {"type": "function_call_output", "call_id": "c2",
         "output": [{"type": "input_text", "text": "dry"}]}]}, [
        {"role": "user", "content": "Rain?"},
        {"role": "assistant", "content": "See:", "tool_calls": [
            {"id": name, "type": "function",
             "function": {"name": "weather", "arguments": '{"city":"Rome"}'}}
            for name in ("c1", "c2")]},
        {"role": "tool", "tool_call_id": "c1", "content": "wet"},
        {"role": "tool", "tool_call_id": "c2", "content": "dry"}]),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "messages"), INPUTS, ids=["text", "messages", "calls"])
def test_inputs_are_the_messages_of_a_chat(
    toy: Served, fields: dict[str, Any], messages: list[dict[str, Any]]
) -> None:
    chat = toy.chat(messages=messages)
    answer = ask(toy, **fields)
    assert text_of(answer) == said(chat)[0]
    assert answer.json["usage"]["input_tokens"] == chat.json["usage"]["prompt_tokens"]


def test_a_format_is_kept(toy: Served) -> None:
    wanted = {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA, "strict": True}}
    answer = ask(toy, text=wanted, max_output_tokens=60)
    assert json.loads(text_of(answer))["city"] in ("Paris", "Rome")
    assert answer.json["text"] == wanted
    assert text_of(ask(toy, text={"format": {"type": "text"}, "verbosity": "low"}))


def test_a_call_whole_and_in_events(toy: Served) -> None:
    record = ask(toy, max_output_tokens=200, **FORCED).json
    [call] = record["output"]
    assert (call["type"], call["name"], call["status"]) == ("function_call", "weather", "completed")
    events = named_events(ask(toy, max_output_tokens=200, stream=True, **FORCED).body)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    names = [event["type"].removeprefix("response.") for event in events]
    assert names[:3] == ["created", "in_progress", "output_item.added"]
    assert names[-3:] == ["function_call_arguments.done", "output_item.done", "completed"]
    pieces = [event["delta"] for event in events if event["type"].endswith("arguments.delta")]
    assert len(pieces) == len(events) - 6
    assert "".join(pieces) == call["arguments"] == events[-3]["arguments"]
    [streamed] = events[-1]["response"]["output"]
    assert streamed == events[-2]["item"]
    assert streamed["arguments"] == call["arguments"]


def test_text_in_events(toy: Served) -> None:
    whole = text_of(ask(toy))
    events = named_events(ask(toy, stream=True).body)
    names = [event["type"].removeprefix("response.") for event in events]
    assert names[:4] == ["created", "in_progress", "output_item.added", "content_part.added"]
    done = ["output_text.done", "content_part.done", "output_item.done", "completed"]
    assert names[-4:] == done
    assert set(names[4:-4]) == {"output_text.delta"}
    assert "".join(event["delta"] for event in events[4:-4]) == whole == events[-4]["text"]
    identity = events[2]["item"]["id"]
    assert {event["item_id"] for event in events[3:-2]} == {identity}
    final = events[-1]["response"]
    assert final["output"][0]["content"][0]["text"] == whole
    assert final["usage"] == {**ask(toy).json["usage"], "input_tokens_details": final["usage"][
        "input_tokens_details"]}  # fmt: skip


def test_text_before_a_call_is_an_item_of_its_own() -> None:
    written = (
        'Let me see.<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'
    )
    with served(model(written, recipe="plain"), "plain") as one:
        options = {"tools": [TOOL], "max_output_tokens": 200}
        for stream in (False, True):
            answer = ask(one, stream=stream, **options)
            record = named_events(answer.body)[-1]["response"] if stream else answer.json
            message, call = record["output"]
            assert message["content"][0]["text"] == "Let me see."
            assert json.loads(call["arguments"]) == {"city": "Rome"}
            assert message["id"] != call["id"]


def test_log_probabilities(toy: Served) -> None:
    for fields in ({"top_logprobs": 2}, {"include": ["message.output_text.logprobs"]}):
        answer = ask(toy, **fields).json
        logs = answer["output"][0]["content"][0]["logprobs"]
        chat = toy.chat(logprobs=True, top_logprobs=fields.get("top_logprobs", 0))
        assert logs == chat.json["choices"][0]["logprobs"]["content"]
        assert len(logs[0]["top_logprobs"]) == fields.get("top_logprobs", 0)


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"input": []}, "input"),
    ({"input": [{"type": "input_image"}]}, "input[0].type"),
    ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0]"),
    ({"input": [{"role": "king", "content": "x"}]}, "input[0].role"),
    ({"input": [{"role": "user"}]}, "input[0].content"),
    ({"input": [{"role": "user", "content": "x", "mood": 1}]}, "input[0].mood"),
    ({"input": [{"type": "function_call", "name": "f"}]}, "input[0].call_id"),
    ({"input": [{"type": "function_call_output", "call_id": "x", "output": ""}]}, "input"),
    ({"input": "x" * 600}, "input"),
    ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
    ({"tools": [{**TOOL, "cache": 1}]}, "tools[0].cache"),
    ({"tool_choice": {"type": "function", "name": "g"}, "tools": [TOOL]}, "tool_choice"),
    ({"text": {"format": {"type": "xml"}}}, "text.format"),
    ({"text": {"format": {"type": "json_schema", "schema": SCHEMA, "x": 1}}}, "text.format.x"),
    ({"max_output_tokens": 600}, "max_output_tokens"),
    ({"previous_response_id": "resp_1"}, "previous_response_id"),
    ({"truncation": "auto"}, "truncation"),
    ({"background": True}, "background"),
    ({"include": ["file_search_call.results"]}, "include"),
    ({"temperature": 3}, "temperature"),
]


@pytest.mark.parametrize(("fields", "param"), WRONG, ids=lambda value: str(value)[:40])
def test_what_is_wrong_is_named_as_it_was_sent(
    toy: Served, fields: dict[str, Any], param: str
) -> None:
    answer = ask(toy, **fields)
    assert (answer.status, answer.error["param"]) == (400, param)


@pytest.mark.parametrize("name", ["previous_response_id", "conversation"])
def test_why_earlier_responses_cannot_be_named(toy: Served, name: str) -> None:
    answer = ask(toy, **{name: "resp_1"})
    assert (answer.error["code"], answer.error["param"]) == ("unsupported_parameter", name)
    assert "send the earlier items in input" in answer.error["message"]


def test_defaults_that_clients_write_out_are_accepted(toy: Served) -> None:
    defaults = {"background": False, "truncation": "disabled", "include": [], "tools": [],
                "previous_response_id": None, "conversation": None, "store": True,
                "reasoning": {"effort": "low"}, "metadata": {}, "service_tier": "auto"}  # fmt: skip
    answer = ask(toy, **defaults)
    assert answer.status == 200, answer.body
    assert "reasoning_effort" in answer.headers["x-sapwood-ignored"]


def test_a_failure_in_the_middle_is_an_event(monkeypatch: pytest.MonkeyPatch) -> None:
    with served(recipe="plain") as one:
        fail_after_one(one, monkeypatch)
        *_, before, last = named_events(ask(one, stream=True).body)
        assert (last["type"], last["code"]) == ("error", "rate_limit_exceeded")
        assert last["message"] == "too many"
        assert last["sequence_number"] == before["sequence_number"] + 1


def test_a_cadence_sends_events_of_even_size() -> None:
    with served(cadence_ms=5) as one:
        body = ask(one, stream=True).body
        assert named_events(body)[-1]["type"] == "response.completed"
        deltas = [
            part for part in body.split(b"event: ") if part.startswith(b"response.output_text.d")
        ]
        assert {(len(b"event: ") + len(part.partition(b": wait")[0])) % 256 for part in deltas} == {
            0
        }


def test_nothing_is_loaded_before_the_first_request(toy: Served) -> None:
    names = [name for name in sys.modules if name.startswith("sapwood.server.openai.responses_")]
    saved = {name: sys.modules.pop(name) for name in names}
    try:
        with served() as one:
            assert one.chat(max_tokens=2).status == 200
            assert not [name for name in sys.modules if "openai.responses_" in name]
    finally:
        sys.modules.update(saved)

"""The Messages API: turns of blocks, tools, stop sequences, keys, errors and events."""

import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.helpers.api_answers import said
from tests.helpers.asgi_client import Answer, Served, model, served
from tests.helpers.attacked_server import KEY
from tests.helpers.named_events import fail_after_one, named_events

pytestmark = pytest.mark.usefixtures("own_cache")
PATH = "/v1/messages"
HI = [{"role": "user", "content": "Hi"}]
TOOL = {
    "name": "weather",
    "description": "The weather",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"enum": ["Paris", "Rome"]}},
        "required": ["city"],
        "additionalProperties": False,
    },
}
CHAT_TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": TOOL["input_schema"],
        "description": "The weather",
    },
}
FORCED = {"tools": [TOOL], "tool_choice": {"type": "any", "disable_parallel_tool_use": True}}
USED = {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Rome"}}


@pytest.fixture(scope="module")
def toy(own_cache: None) -> Iterator[Served]:
    with served(model(context=1024)) as one:
        yield one


def ask(one: Served, **fields: Any) -> Answer:
    given = {"model": "toy", "messages": HI, "temperature": 0, "max_tokens": 8}
    return one.post(PATH, {**given, **fields})


def text_of(answer: Answer) -> str:
    assert answer.status == 200, answer.body
    [block] = answer.json["content"]
    assert block["type"] == "text"
    return str(block["text"])


def test_a_message_has_the_text_and_usage_of_the_chat(toy: Served) -> None:
    chat = toy.chat()
    answer = ask(toy)
    record = answer.json
    assert text_of(answer) == said(chat)[0]
    assert (record["type"], record["role"], record["model"]) == ("message", "assistant", "toy")
    usage = record["usage"]
    used = chat.json["usage"]
    assert usage["output_tokens"] == used["completion_tokens"]
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == used["prompt_tokens"]
    count = toy.post(f"{PATH}/count_tokens", {"messages": HI})
    assert count.json == {"input_tokens": used["prompt_tokens"]}


TURNS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    (
        {"system": "Be.", "messages": HI},
        {"messages": [{"role": "system", "content": "Be."}, *HI]},
    ),
    (
        {
            "system": [{"type": "text", "text": "Be."}, {"type": "text", "text": "Good."}],
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "H"}, {
                    "type": "text", "text": "i", "cache_control": {"type": "ephemeral"}}]}
            ],
        },
        {"messages": [{"role": "system", "content": "Be.\nGood."}, *HI]},
    ),
    (
        {
            "tools": [TOOL],
            "messages": [
                {"role": "user", "content": "Rain?"},
                {"role": "assistant", "content": [
                    {"type": "thinking", "thinking": "hm", "signature": "x"},
                    {"type": "text", "text": "See:"}, USED]},
                {"role": "user", "content": [
                    {"type": "tool_result", "tool_use_id": "t1",
                     "content": [{"type": "text", "text": "wet"}]},
                    {"type": "text", "text": "So?"}]},
            ],
        },
        {
            "tools": [CHAT_TOOL],
            "messages": [
                {"role": "user", "content": "Rain?"},
                {"role": "assistant", "content": "See:", "tool_calls": [{
                    "id": "t1", "type": "function",
                    "function": {"name": "weather", "arguments": '{"city": "Rome"}'}}]},
                {"role": "tool", "tool_call_id": "t1", "content": "wet"},
                {"role": "user", "content": "So?"},
            ],
        },
    ),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "chat"), TURNS, ids=["system", "blocks", "tools"])
def test_turns_are_the_messages_of_a_chat(
    toy: Served, fields: dict[str, Any], chat: dict[str, Any]
) -> None:
    wanted = toy.chat(**chat)
    answer = ask(toy, **fields)
    assert text_of(answer) == said(wanted)[0]
    usage = answer.json["usage"]
    total = usage["input_tokens"] + usage["cache_read_input_tokens"]
    assert total == wanted.json["usage"]["prompt_tokens"]


def test_reasons_of_the_end() -> None:
    with served(model("One two three", recipe="plain"), "plain") as one:
        record = ask(one, max_tokens=50).json
        assert (record["stop_reason"], record["stop_sequence"]) == ("end_turn", None)
        record = ask(one, max_tokens=50, stop_sequences=["zz", " tw"]).json
        assert (record["stop_reason"], record["stop_sequence"]) == ("stop_sequence", " tw")
        assert record["content"][0]["text"] == "One"
        events = named_events(ask(one, max_tokens=50, stop_sequences=[" tw"], stream=True).body)
        assert events[-2]["delta"] == {"stop_reason": "stop_sequence", "stop_sequence": " tw"}
        assert ask(one, max_tokens=2).json["stop_reason"] == "max_tokens"


def test_text_in_events(toy: Served) -> None:
    whole = text_of(ask(toy))
    events = named_events(ask(toy, stream=True).body)
    names = [event["type"] for event in events]
    assert names[:2] == ["message_start", "content_block_start"]
    assert names[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert set(names[2:-3]) == {"content_block_delta"}
    assert "".join(event["delta"]["text"] for event in events[2:-3]) == whole
    assert events[0]["message"]["content"] == []
    assert events[-2]["usage"]["output_tokens"] == ask(toy).json["usage"]["output_tokens"]


@pytest.mark.parametrize("choice", [FORCED["tool_choice"], {"type": "tool", "name": "weather"}])
def test_a_call_whole_and_in_events(toy: Served, choice: Any) -> None:
    options = {"tools": [TOOL], "tool_choice": choice, "max_tokens": 200}
    record = ask(toy, **options).json
    [block] = record["content"]
    assert (block["type"], block["name"]) == ("tool_use", "weather")
    assert block["input"]["city"] in ("Paris", "Rome")
    assert record["stop_reason"] == "tool_use"
    events = named_events(ask(toy, stream=True, **options).body)
    assert events[1]["content_block"]["input"] == {}
    pieces = [
        event["delta"]["partial_json"]
        for event in events
        if "partial_json" in event.get("delta", {})
    ]
    assert f'{{"city": "{block["input"]["city"]}"}}' == "".join(pieces)
    assert events[-2]["delta"]["stop_reason"] == "tool_use"


def test_a_call_that_is_cut_has_no_input(toy: Served) -> None:
    record = ask(toy, max_tokens=50, **FORCED).json
    assert record["content"][0]["input"] == {}
    assert record["stop_reason"] == "max_tokens"
    assert ask(toy, max_tokens=5, **FORCED).json["content"] == []


def test_a_format_is_kept(toy: Served) -> None:
    wanted = {"type": "json_schema", "schema": TOOL["input_schema"]}
    answer = ask(toy, max_tokens=60, output_config={"format": wanted, "effort": "low"})
    assert text_of(answer) in ('{"city": "Rome"}', '{"city": "Paris"}')


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"max_tokens": None}, "max_tokens"),
    ({"max_tokens": 1100}, "max_tokens"),
    ({"messages": []}, "messages"),
    ({"messages": [{"role": "king", "content": "x"}]}, "messages[0].role"),
    ({"messages": [*HI, {"role": "assistant", "content": "I"}]}, "messages[1].role"),
    ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "messages[0].content[0].type"),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
    ({"messages": [{"role": "user", "content": [USED]}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": []}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": "t9", "content": "x"}]}]}, "messages"),
    ({"messages": [{"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": "t9", "content": [{"type": "image"}]}]}]},
        "messages[0].content[0].content[0].type"),
    ({"stop_sequences": [""]}, "stop_sequences"),
    ({"temperature": 1.5}, "temperature"),
    ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "thinking"),
    ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type"),
    ({"tools": [TOOL], "tool_choice": {"type": "tool"}}, "tool_choice.name"),
    ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "x"}}, "tool_choice"),
    ({"mcp_servers": [1]}, "mcp_servers"),
    ({"output_config": {"format": {"type": "xml"}}}, "output_config.format"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "param"), WRONG, ids=lambda value: str(value)[:40])
def test_errors_have_the_form_of_this_api(toy: Served, fields: dict[str, Any], param: str) -> None:
    answer = ask(toy, **fields)
    assert answer.status == 400, answer.body
    record = answer.json
    assert record["type"] == "error"
    assert record["error"]["type"] == "invalid_request_error"
    assert record["error"]["param"] == param
    assert record["error"]["message"]


def test_a_failure_in_the_middle_is_an_event(monkeypatch: pytest.MonkeyPatch) -> None:
    with served(recipe="plain") as one:
        fail_after_one(one, monkeypatch)
        last = named_events(ask(one, stream=True).body)[-1]
        assert last == {
            "type": "error",
            "error": {"type": "rate_limit_error", "message": "too many"},
        }


def test_keys_are_taken_from_the_header_of_this_api(locked: Served) -> None:
    body = {"messages": HI, "max_tokens": 2}
    assert locked.post(PATH, body, ("x-api-key", KEY)).status == 200
    assert locked.post(PATH, body, ("authorization", f"Bearer {KEY}")).status == 200
    for headers in ((), (("x-api-key", "wrong-key"),), (("authorization", f"Basic {KEY}"),)):
        answer = locked.post(PATH, body, *headers)
        assert (answer.status, answer.json["error"]["type"]) == (401, "authentication_error")
    assert ask(locked, model="x").json["error"]["type"] == "authentication_error"


def test_nothing_is_loaded_before_the_first_request(toy: Served) -> None:
    saved = {
        name: sys.modules.pop(name) for name in list(sys.modules) if "server.anthropic" in name
    }
    try:
        with served() as one:
            assert one.chat(max_tokens=2).status == 200
            assert one.chat(max_tokens=-1).status == 400
            assert not [name for name in sys.modules if "server.anthropic" in name]
    finally:
        sys.modules.update(saved)


@pytest.mark.parametrize("length", [5, 45, 60])
def test_a_forced_call_that_is_cut_leaves_no_markup(toy: Served, length: int) -> None:
    record = ask(toy, max_tokens=length, **FORCED).json
    assert record["stop_reason"] == "max_tokens"
    assert all(block["type"] == "tool_use" for block in record["content"])
    body = ask(toy, max_tokens=length, stream=True, **FORCED).body
    assert b"text_delta" not in body
    assert b"tool_call>" not in body

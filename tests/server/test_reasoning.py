"""Reasoning and calls of model families through all three APIs, whole and as streams."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.helpers.asgi_client import Served, served
from tests.helpers.named_events import named_events
from tests.helpers.speaking_model import speaking

BODY = (
    "{{ tools | tojson if tools else '' }}{% for message in messages %}<user>{{ message.content }}"
    "{% if message.reasoning_content %}[{{ message.reasoning_content }}]{% endif %}{% endfor %}<bot>"
)
QWEN = (
    BODY + "{# <tool_call> </think> #}"
    "{% if enable_thinking is defined and not enable_thinking %}OFF{% endif %}"
)
HARMONY = BODY + "{# <|channel|>analysis <|constrain|> #}"
CHANNELS = ("<|channel|>", "<|message|>", "<|end|>", "<|start|>", "<|constrain|>", "<|call|>")
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
]
HI = [{"role": "user", "content": "Hi"}]
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'


@pytest.fixture(scope="module")
def qwen(own_cache: None) -> Iterator[Served]:
    raw = f"<think>\nRome, then.\n</think>\n\nI look.\n{CALL}"
    with served(speaking(raw, QWEN), recipe="plain") as one:
        yield one


@pytest.fixture(scope="module")
def harmony(own_cache: None) -> Iterator[Served]:
    raw = (
        "<|channel|>analysis<|message|>Rome.<|end|><|start|>assistant<|channel|>commentary"
        ' to=functions.weather <|constrain|>json<|message|>{"city": "Rome"}<|call|>'
    )
    with served(speaking(raw, HARMONY, CHANNELS), recipe="plain") as one:
        yield one


def chat(one: Served, **fields: Any) -> dict[str, Any]:
    answer = one.post(
        "/v1/chat/completions",
        {"messages": HI, "tools": TOOLS, "max_tokens": 400, "temperature": 0, **fields},
    )
    assert answer.status == 200, answer.body
    found: dict[str, Any] = answer.json
    return found


def test_a_chat_has_reasoning_text_and_calls(qwen: Served) -> None:
    answer = chat(qwen)
    [choice] = answer["choices"]
    message = choice["message"]
    assert (message["reasoning_content"], message["content"]) == ("Rome, then.", "I look.")
    [call] = message["tool_calls"]
    assert (call["function"]["name"], json.loads(call["function"]["arguments"])) == (
        "weather",
        {"city": "Rome"},
    )
    assert choice["finish_reason"] == "tool_calls"
    reasoned = answer["usage"]["completion_tokens_details"]["reasoning_tokens"]
    assert reasoned == len("<think>\nRome, then.\n</think>")


def test_a_stream_has_the_same_parts(qwen: Served) -> None:
    body = {"messages": HI, "tools": TOOLS, "max_tokens": 400, "temperature": 0, "stream": True}
    answer = qwen.post("/v1/chat/completions", body)
    lines = [line[6:] for line in answer.body.decode().split("\n\n") if line.startswith("data: {")]
    deltas = [json.loads(line)["choices"][0]["delta"] for line in lines]
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == "Rome, then."
    assert "".join(delta.get("content", "") for delta in deltas).strip() == "I look."
    calls = [call for delta in deltas for call in delta.get("tool_calls", [])]
    assert calls[0]["function"]["name"] == "weather"
    said = "".join(call["function"]["arguments"] for call in calls)
    assert json.loads(said) == {"city": "Rome"}
    assert len([delta for delta in deltas if delta.get("reasoning_content")]) > 3


def test_special_tokens_of_a_family_are_parsed_and_not_shown(harmony: Served) -> None:
    message = chat(harmony)["choices"][0]["message"]
    assert message["reasoning_content"] == "Rome."
    assert message["content"] is None
    assert message["tool_calls"][0]["function"]["arguments"] == '{"city": "Rome"}'
    plain = harmony.post("/v1/completions", {"prompt": "a<bot>", "max_tokens": 40})
    assert "<|channel|>" not in plain.json["choices"][0]["text"]


def test_reasoning_can_be_turned_off_and_sent_back(qwen: Served) -> None:
    builder = qwen.api.request_builder

    def prompt(**fields: Any) -> str:
        from sapwood.server.http.json_body import decode
        from sapwood.server.openai.request_schema import ChatRequest

        body = {"messages": HI, **fields}
        parsed = builder.chat(decode(json.dumps(body).encode(), ChatRequest), "")
        return str(builder.prompts.tokenizer.show(parsed.requests[0].prompt))

    assert not prompt().endswith("OFF")
    assert prompt(reasoning_effort="none").endswith("OFF")
    assert not prompt(reasoning_effort="high").endswith("OFF")
    assert prompt(chat_template_kwargs={"enable_thinking": False}).endswith("OFF")
    earlier = {"role": "assistant", "content": "Yes.", "reasoning_content": "Hm."}
    assert "[Hm.]" in prompt(messages=[*HI, earlier, *HI])


def test_responses_have_an_item_of_reasoning(qwen: Served) -> None:
    tool = {"type": "function", **TOOLS[0]["function"]}  # type: ignore[dict-item]
    body = {"input": "Hi", "tools": [tool], "max_output_tokens": 400, "temperature": 0}
    made = qwen.post("/v1/responses", body).json
    assert [item["type"] for item in made["output"]] == ["reasoning", "message", "function_call"]
    assert made["output"][0]["content"] == [{"type": "reasoning_text", "text": "Rome, then."}]
    assert made["usage"]["output_tokens_details"]["reasoning_tokens"] > 0
    sent = named_events(qwen.post("/v1/responses", {**body, "stream": True}).body)
    said = [event["delta"] for event in sent if event["type"] == "response.reasoning_text.delta"]
    assert "".join(said) == "Rome, then."
    assert [item["type"] for item in sent[-1]["response"]["output"]] == [
        item["type"] for item in made["output"]
    ]
    again = {"input": [{"role": "user", "content": "Hi"}, *made["output"][:2]]}
    assert qwen.post("/v1/responses", {**again, "max_output_tokens": 4}).status == 200


def test_messages_have_a_block_of_thinking(qwen: Served) -> None:
    tool = {"name": "weather", "input_schema": TOOLS[0]["function"]["parameters"]}  # type: ignore[index]
    body = {"messages": HI, "max_tokens": 400, "temperature": 0, "tools": [tool]}
    thinking = {"type": "enabled", "budget_tokens": 1024}
    made = qwen.post("/v1/messages", {**body, "thinking": thinking}).json
    assert [block["type"] for block in made["content"]] == ["thinking", "text", "tool_use"]
    assert made["content"][0]["thinking"] == "Rome, then."
    sent = named_events(qwen.post("/v1/messages", {**body, "stream": True}).body)
    deltas = [event["delta"] for event in sent if event["type"] == "content_block_delta"]
    said = [delta["thinking"] for delta in deltas if delta["type"] == "thinking_delta"]
    assert "".join(said) == "Rome, then."

"""What the official `anthropic` client must be able to do: python with_anthropic.py URL MODEL KEY."""

import sys
from typing import Any

import anthropic

url, model, key = sys.argv[1:]
client = anthropic.Anthropic(base_url=url.removesuffix("/v1"), api_key=key, max_retries=0)
HI = [{"role": "user", "content": "Name three uses of a paperclip."}]
GREEDY = {"temperature": 0}  # newer clients have no argument for it
SHORT = {"model": model, "messages": HI, "max_tokens": 12, "extra_body": GREEDY}
TOOL = {
    "name": "weather",
    "description": "The weather in a city",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"enum": ["Paris", "Rome"]}},
        "required": ["city"],
        "additionalProperties": False,
    },
}

whole = client.messages.create(**SHORT)
text = whole.content[0].text
assert (whole.type, whole.role, whole.model) == ("message", "assistant", model)
assert whole.stop_reason in ("end_turn", "max_tokens")
assert 0 < whole.usage.output_tokens <= 12
print("ok message")

with client.messages.stream(**SHORT) as stream:
    assert "".join(stream.text_stream) == text
    final = stream.get_final_message()
assert final.content[0].text == text
assert final.stop_reason == whole.stop_reason
assert final.usage.output_tokens == whole.usage.output_tokens
print("ok stream")

stop = text[6]
cut = client.messages.create(**{**SHORT, "stop_sequences": [stop]})
assert cut.content[0].text == text.partition(stop)[0]
assert (cut.stop_reason, cut.stop_sequence) == ("stop_sequence", stop)
print("ok stop sequence")

counted = client.messages.count_tokens(model=model, messages=HI)
used = whole.usage.input_tokens + (whole.usage.cache_read_input_tokens or 0)
assert counted.input_tokens == used
print("ok count")

options = {**SHORT, "max_tokens": 300, "tools": [TOOL]}
options["tool_choice"] = {"type": "tool", "name": "weather"}
called = client.messages.create(**options)
[use] = called.content
assert (use.type, use.name, called.stop_reason) == ("tool_use", "weather", "tool_use")
assert use.input["city"] in ("Paris", "Rome")
with client.messages.stream(**options) as stream:
    [streamed] = stream.get_final_message().content
assert (streamed.name, streamed.input) == (use.name, use.input)
result = {"type": "tool_result", "tool_use_id": use.id, "content": "Rain."}
history = [
    *HI,
    {"role": "assistant", "content": called.content},
    {"role": "user", "content": [result]},
]
after = client.messages.create(model=model, messages=history, tools=[TOOL], max_tokens=4)
assert after.usage.output_tokens > 0
print("ok tools")


def refused(kind: type[anthropic.APIStatusError], key: str = key, **fields: object) -> Any:
    """The error object of a request that must be refused."""
    try:
        client.with_options(api_key=key).messages.create(**{**SHORT, **fields})
    except kind as error:
        return error.body["error"]
    raise AssertionError(f"{kind.__name__} was not raised")


assert refused(anthropic.BadRequestError, max_tokens=5000)["param"] == "max_tokens"
assert refused(anthropic.BadRequestError, messages=[])["type"] == "invalid_request_error"
assert refused(anthropic.NotFoundError, model="none")["type"] == "not_found_error"
assert refused(anthropic.AuthenticationError, "wrong-key")["type"] == "authentication_error"
print("ok errors")

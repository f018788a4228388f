"""What `litellm` must be able to do: python with_litellm.py URL MODEL KEY."""

import json
import sys

import litellm

url, model, key = sys.argv[1:]
HI = [{"role": "user", "content": "Name three uses of a paperclip."}]
COMMON = {
    "model": f"openai/{model}",
    "api_base": url,
    "api_key": key,
    "num_retries": 0,
    "max_retries": 0,
}
SHORT = {**COMMON, "messages": HI, "max_tokens": 12, "temperature": 0}
SCHEMA = {
    "type": "object",
    "properties": {"age": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["age"],
}
TOOL = {
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

whole = litellm.completion(**SHORT)
text = whole.choices[0].message.content
assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens
print("ok chat")

chunks = list(litellm.completion(**SHORT, stream=True, stream_options={"include_usage": True}))
assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == text
assert any(getattr(chunk, "usage", None) for chunk in chunks)
print("ok streaming, usage")

stop = text[3:5]
assert (
    litellm.completion(**{**SHORT, "stop": [stop]}).choices[0].message.content
    == text.partition(stop)[0]
)
print("ok stop")

several = {**SHORT, "n": 3, "temperature": 1, "seed": 5}
first = litellm.completion(**several)
again = litellm.completion(**several)
assert len(first.choices) == 3
assert [c.message.content for c in first.choices] == [c.message.content for c in again.choices]
print("ok n, seed")

logged = litellm.completion(**SHORT, logprobs=True, top_logprobs=2)
assert len(logged.choices[0].logprobs["content"][0]["top_logprobs"]) == 2
litellm.completion(**SHORT, logit_bias={"40": 5})
print("ok logprobs, logit bias")

old = litellm.text_completion(
    **{**COMMON, "model": f"text-completion-openai/{model}"}, prompt="Once", max_tokens=4
)
assert old.choices[0].text is not None
print("ok completions")

wanted = {"type": "json_schema", "json_schema": {"name": "age", "schema": SCHEMA, "strict": True}}
shaped = litellm.completion(**{**SHORT, "max_tokens": 200}, response_format=wanted)
assert isinstance(json.loads(shaped.choices[0].message.content)["age"], int)
print("ok JSON schema")

called = litellm.completion(**{**SHORT, "max_tokens": 200}, tools=[TOOL], tool_choice="required")
assert json.loads(called.choices[0].message.tool_calls[0].function.arguments)["city"] in (
    "Paris",
    "Rome",
)
print("ok tools")

for kind, change in (
    (litellm.AuthenticationError, {"api_key": "wrong-key"}),
    (litellm.NotFoundError, {"model": "openai/none"}),
    (litellm.BadRequestError, {"temperature": 5}),
):
    try:
        litellm.completion(**{**SHORT, **change})
    except kind:
        pass
    else:
        raise AssertionError(f"{kind.__name__} was not raised")
print("ok errors")

"""What `langchain-openai` must be able to do: python with_langchain.py URL MODEL KEY."""

import json
import sys

import openai
from langchain_core.messages import HumanMessage, SystemMessage
from langchain_openai import ChatOpenAI, OpenAI

url, model, key = sys.argv[1:]
HI = [SystemMessage("Be brief."), HumanMessage("Name three uses of a paperclip.")]
COMMON = {"base_url": url, "api_key": key, "model": model, "max_retries": 0, "temperature": 0}
SCHEMA = {
    "title": "person",
    "description": "somebody",
    "type": "object",
    "properties": {"age": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["age"],
    "additionalProperties": False,
}
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Paris", "Rome"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}

chat = ChatOpenAI(**COMMON, max_tokens=12)
whole = chat.invoke(HI)
assert whole.usage_metadata["total_tokens"] > whole.usage_metadata["output_tokens"] > 0
print("ok chat, usage")

pieces = list(chat.stream(HI, stream_usage=True))
assert "".join(piece.content for piece in pieces) == whole.content
assert sum((piece.usage_metadata or {}).get("output_tokens", 0) for piece in pieces) > 0
print("ok streaming")

stop = whole.content[3:5]
assert chat.invoke(HI, stop=[stop]).content == whole.content.partition(stop)[0]
print("ok stop")

several = ChatOpenAI(**{**COMMON, "temperature": 1}, max_tokens=12, n=3, seed=5)
found = several.generate([HI]).generations[0]
assert [one.text for one in found] == [one.text for one in several.generate([HI]).generations[0]]
assert len(found) == 3
print("ok n, seed")

logged = ChatOpenAI(
    **COMMON, max_tokens=12, logprobs=True, top_logprobs=2, logit_bias={"40": 5}
).invoke(HI)
assert len(logged.response_metadata["logprobs"]["content"][0]["top_logprobs"]) == 2
print("ok logprobs, logit bias")

assert isinstance(OpenAI(**COMMON, max_tokens=4).invoke("Once"), str)
print("ok completions")

longer = ChatOpenAI(**COMMON, max_tokens=200)
shaped = longer.with_structured_output(SCHEMA, method="json_schema", strict=True).invoke(HI)
assert isinstance(shaped["age"], int)
print("ok JSON schema")

called = longer.bind_tools([TOOL], tool_choice="weather").invoke(HI)
assert called.tool_calls[0]["args"]["city"] in ("Paris", "Rome"), json.dumps(called.tool_calls)
print("ok tools")

for kind, change in (
    (openai.AuthenticationError, {"api_key": "wrong-key"}),
    (openai.NotFoundError, {"model": "none"}),
    (openai.BadRequestError, {"temperature": 5}),
):
    try:
        ChatOpenAI(**{**COMMON, **change}, max_tokens=4).invoke(HI)
    except kind:
        pass
    else:
        raise AssertionError(f"{kind.__name__} was not raised")
print("ok errors")

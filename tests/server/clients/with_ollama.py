"""What the official `ollama` client must be able to do: python with_ollama.py URL MODEL KEY."""

import sys
from typing import Any

import ollama
from pydantic import BaseModel

url, model, key = sys.argv[1:]
host = url.removesuffix("/v1")
client = ollama.Client(host=host, headers={"Authorization": f"Bearer {key}"})
HI = [{"role": "user", "content": "Name three uses of a paperclip."}]
GREEDY = {"temperature": 0, "num_predict": 12}

whole = client.chat(model=model, messages=HI, options=GREEDY)
text = whole.message.content or ""
assert (whole.model, whole.done, whole.message.role) == (model, True, "assistant")
assert whole.done_reason in ("stop", "length")
assert 0 < (whole.eval_count or 0) <= 12
assert (whole.total_duration or 0) >= (whole.eval_duration or 0) > 0
print("ok chat")

parts = list(client.chat(model=model, messages=HI, options=GREEDY, stream=True))
assert "".join(part.message.content or "" for part in parts) == text
assert parts[-1].done
assert parts[-1].eval_count == whole.eval_count
print("ok stream")

answer = client.generate(model=model, prompt=HI[0]["content"], options=GREEDY)
assert answer.response == text
pieces = client.generate(model=model, prompt=HI[0]["content"], options=GREEDY, stream=True)
assert "".join(piece.response or "" for piece in pieces) == text
raw = client.generate(model=model, prompt="abc", raw=True, options=GREEDY)
assert raw.prompt_eval_count is not None
assert raw.prompt_eval_count < (answer.prompt_eval_count or 0)
print("ok generate")


class Choice(BaseModel):
    """An answer in a format."""

    ready: bool


formatted = client.chat(
    model=model,
    messages=HI,
    format=Choice.model_json_schema(),
    options={"temperature": 0, "num_predict": 60},
)
assert isinstance(Choice.model_validate_json(formatted.message.content or "").ready, bool)
print("ok format")


def weather(city: str) -> str:
    """The weather.

    Args:
        city: where
    """
    return f"Rain in {city}."


offered = client.chat(model=model, messages=HI, tools=[weather], options=GREEDY)
assert offered.done
history: list[Any] = [
    *HI,
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"function": {"name": "weather", "arguments": {"city": "Rome"}}}],
    },
    {"role": "tool", "content": weather("Rome"), "tool_name": "weather"},
]
after = client.chat(model=model, messages=history, tools=[weather], options=GREEDY)
assert (after.eval_count or 0) > 0
print("ok tools")

probed = client.chat(model=model, messages=HI, options=GREEDY, logprobs=True, top_logprobs=2)
assert probed.logprobs
assert all(each.logprob <= 0 for each in probed.logprobs)
print("ok logprobs")

vectors = client.embed(model=model, input=["one", "two"])
assert len(vectors.embeddings) == 2
assert len(vectors.embeddings[0]) == len(vectors.embeddings[1]) > 1
print("ok embed")

assert [each.model for each in client.list().models] == [model]
[loaded] = client.ps().models
assert (loaded.model, loaded.context_length) == (model, 2048)
shown = client.show(model)
assert shown.modelinfo is not None
assert f"{shown.modelinfo['general.architecture']}.context_length" in shown.modelinfo
assert {"completion", "tools", "embedding"} <= set(shown.capabilities or ())
print("ok models")


def refused(one: ollama.Client, **fields: Any) -> tuple[int, str]:
    """Status and error of a request that must be refused."""
    try:
        one.chat(**{"model": model, "messages": HI, **fields})
    except ollama.ResponseError as error:
        return error.status_code, error.error
    raise AssertionError("it was not refused")


assert refused(client, model="none")[0] == 404
status, reason = refused(client, options={"mirostat": 2})
assert (status, "options.mirostat" in reason) == (400, True)
assert refused(ollama.Client(host=host))[0] == 401
print("ok errors")

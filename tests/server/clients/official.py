"""What the official `openai` client for Python must be able to do; run by the tests, or against any server.

python -m tests.server.clients.official http://127.0.0.1:8000/v1 MODEL KEY
"""

import asyncio
import json
import sys
from collections.abc import Callable
from typing import Any, Literal

import openai
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel, Field

Check = Callable[[OpenAI, str], None]
HI: list[Any] = [{"role": "user", "content": "Name three uses of a paperclip."}]
SHORT: dict[str, Any] = {"messages": HI, "max_tokens": 12, "temperature": 0}
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
TOOL: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather in a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Paris", "Rome"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


class Person(BaseModel):
    """A format that the client reads back into an object."""

    name: str = Field(max_length=8)
    age: int = Field(ge=0, le=99)
    mood: Literal["good", "bad"]


class Weather(BaseModel):
    """A function whose arguments the client reads back."""

    city: Literal["Paris", "Rome"]


def chat(client: OpenAI, model: str) -> None:
    """A whole answer with its numbers."""
    answer = client.chat.completions.create(model=model, **SHORT)
    choice = answer.choices[0]
    assert answer.object == "chat.completion"
    assert choice.message.role == "assistant"
    assert isinstance(choice.message.content, str)
    assert choice.finish_reason in ("stop", "length")
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert 0 < answer.usage.completion_tokens <= 12


def completions(client: OpenAI, model: str) -> None:
    """Texts, lists of texts and token ids."""
    one = client.completions.create(model=model, prompt="Once", max_tokens=8, temperature=0)
    assert one.object == "text_completion"
    several = client.completions.create(
        model=model, prompt=["Once", "Twice"], max_tokens=8, temperature=0
    )
    assert [choice.index for choice in several.choices] == [0, 1]
    assert several.choices[0].text == one.choices[0].text
    ids = client.completions.create(model=model, prompt=[5, 6, 7], max_tokens=3, temperature=0)
    assert ids.usage is not None
    assert ids.usage.prompt_tokens == 3


def streaming(client: OpenAI, model: str) -> None:
    """The same answer in pieces, with the numbers at the end."""
    client.chat.completions.create(model=model, **SHORT)  # from now on its prompt is cached
    whole = client.chat.completions.create(model=model, **SHORT)
    chunks = list(
        client.chat.completions.create(
            model=model, stream=True, stream_options={"include_usage": True}, **SHORT
        )
    )
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].choices == []
    assert chunks[-1].usage == whole.usage
    assert chunks[-2].choices[0].finish_reason == whole.choices[0].finish_reason
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    with client.chat.completions.stream(model=model, **{**SHORT, "stop": text[6]}) as stream:
        assert (
            stream.get_final_completion().choices[0].message.content == text.partition(text[6])[0]
        )
    pieces = client.completions.create(
        model=model, prompt="Once", max_tokens=8, temperature=0, stream=True
    )
    joined = "".join(piece.choices[0].text for piece in pieces)
    assert (
        joined
        == client.completions.create(model=model, prompt="Once", max_tokens=8, temperature=0)
        .choices[0]
        .text
    )


def stopping(client: OpenAI, model: str) -> None:
    """The text ends before a stop string."""
    options = {**SHORT, "max_tokens": 40}
    text = client.chat.completions.create(model=model, **options).choices[0].message.content or ""
    stop = text[len(text) // 2 : len(text) // 2 + 2]
    cut = client.chat.completions.create(model=model, stop=[stop], **options).choices[0]
    assert cut.message.content == text.partition(stop)[0]
    assert cut.finish_reason == "stop"


def choices(client: OpenAI, model: str) -> None:
    """N answers, the same for the same seed."""
    options: dict[str, Any] = {
        "messages": HI,
        "max_tokens": 12,
        "temperature": 1,
        "seed": 7,
        "n": 3,
    }
    first = client.chat.completions.create(model=model, **options)
    again = client.chat.completions.create(model=model, **options)
    assert [choice.index for choice in first.choices] == [0, 1, 2]
    texts = [choice.message.content for choice in first.choices]
    assert texts == [choice.message.content for choice in again.choices]
    assert len(set(texts)) == 3
    assert first.system_fingerprint == again.system_fingerprint


def logprobs(client: OpenAI, model: str) -> None:
    """Log-probabilities of the tokens and of the best others."""
    answer = client.chat.completions.create(
        model=model, logprobs=True, top_logprobs=3, **SHORT
    ).choices[0]
    assert answer.logprobs is not None
    found = answer.logprobs.content or []
    assert found
    assert all(len(entry.top_logprobs) == 3 for entry in found)
    assert all(entry.logprob == entry.top_logprobs[0].logprob <= 0 for entry in found)
    text = bytes(byte for entry in found for byte in entry.bytes or []).decode("utf-8", "replace")
    assert text == answer.message.content
    old = client.completions.create(
        model=model, prompt="Once", max_tokens=4, temperature=0, logprobs=2
    ).choices[0]
    assert old.logprobs is not None
    assert len(old.logprobs.tokens or []) == len(old.logprobs.token_logprobs or []) > 0


def biasing(client: OpenAI, model: str) -> None:
    """A token that is pushed is said; one that is pushed away is not."""
    pushed = client.completions.create(
        model=model, prompt="Once", max_tokens=4, temperature=0, logit_bias={"40": 100}, logprobs=0
    )
    logs = pushed.choices[0].logprobs
    assert logs is not None
    assert len(set(logs.tokens or [])) == 1


def penalties(client: OpenAI, model: str) -> None:
    """All knobs at once."""
    client.chat.completions.create(
        model=model,
        top_p=0.9,
        presence_penalty=0.5,
        frequency_penalty=-0.5,
        user="me",
        extra_body={"top_k": 20, "min_p": 0.05, "repetition_penalty": 1.1, "ignore_eos": True},
        **{**SHORT, "temperature": 0.8},
    )


def predicting(client: OpenAI, model: str) -> None:
    """A prediction that is right is counted as accepted."""
    whole = client.chat.completions.create(model=model, **SHORT)
    text = whole.choices[0].message.content or ""
    if "\ufffd" in text:
        text = text.partition("\ufffd")[0]
    answer = client.chat.completions.create(
        model=model, prediction={"type": "content", "content": text}, **SHORT
    )
    assert answer.choices[0].message.content == whole.choices[0].message.content
    details = answer.usage and answer.usage.completion_tokens_details
    assert details is not None
    assert (details.accepted_prediction_tokens or 0) >= len(text)
    assert details.rejected_prediction_tokens == 0


def schema(client: OpenAI, model: str) -> None:
    """An answer that a schema describes."""
    wanted: Any = {
        "type": "json_schema",
        "json_schema": {"name": "person", "strict": True, "schema": SCHEMA},
    }
    for temperature in (0.0, 1.0):
        answer = client.chat.completions.create(
            model=model,
            messages=HI,
            max_tokens=300,
            temperature=temperature,
            seed=1,
            response_format=wanted,
        )
        record = json.loads(answer.choices[0].message.content or "")
        assert set(record) == {"name", "age"}
        assert isinstance(record["age"], int)


def tools(client: OpenAI, model: str) -> None:
    """A call of a function, whole and in pieces, and its result sent back."""
    options: dict[str, Any] = {"messages": HI, "max_tokens": 300, "temperature": 0, "tools": [TOOL]}
    options["parallel_tool_calls"] = False
    answer = client.chat.completions.create(model=model, tool_choice="required", **options).choices[
        0
    ]
    assert answer.finish_reason == "tool_calls"
    call: Any = (answer.message.tool_calls or [])[0]
    assert call.function.name == "weather"
    assert json.loads(call.function.arguments)["city"] in ("Paris", "Rome")
    named: Any = {"type": "function", "function": {"name": "weather"}}
    pieces = list(
        client.chat.completions.create(model=model, tool_choice=named, stream=True, **options)
    )
    deltas: list[Any] = [
        call for piece in pieces for call in (piece.choices[0].delta.tool_calls or [])
    ]
    assert deltas[0].function.name == "weather"
    assert json.loads("".join(delta.function.arguments or "" for delta in deltas))["city"] in (
        "Paris",
        "Rome",
    )
    assert pieces[-1].choices[0].finish_reason == "tool_calls"
    history: Any = [
        *HI,
        answer.message,
        {"role": "tool", "tool_call_id": call.id, "content": "Rain."},
    ]
    client.chat.completions.create(model=model, messages=history, max_tokens=4)


def responses(client: OpenAI, model: str) -> None:
    """The Responses API: text, events, a format and a call."""
    options: dict[str, Any] = {"model": model, "temperature": 0, "max_output_tokens": 12}
    whole = client.responses.create(input="Name it.", instructions="Be brief.", **options)
    assert whole.status in ("completed", "incomplete")
    assert whole.usage is not None
    assert whole.usage.total_tokens == whole.usage.input_tokens + whole.usage.output_tokens
    with client.responses.stream(input="Name it.", instructions="Be brief.", **options) as stream:
        events = list(stream)
    assert [event.sequence_number for event in events] == list(range(len(events)))
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == whole.output_text
    options["max_output_tokens"] = 300
    wanted: Any = {"format": {"type": "json_schema", "name": "person", "schema": SCHEMA}}
    record = json.loads(client.responses.create(input="Who?", text=wanted, **options).output_text)
    assert set(record) == {"name", "age"}
    tool: Any = {"type": "function", "strict": None, **TOOL["function"]}
    items: Any = [{"role": "user", "content": "The weather?"}]
    options |= {"tools": [tool], "parallel_tool_calls": False}
    called = client.responses.create(input=items, tool_choice="required", **options)
    call: Any = called.output[0]
    assert json.loads(call.arguments)["city"] in ("Paris", "Rome")
    items += called.output
    items.append({"type": "function_call_output", "call_id": call.call_id, "output": "Rain."})
    assert client.responses.create(input=items, **{**options, "max_output_tokens": 4}).output


def parsing(client: OpenAI, model: str) -> None:
    """Answers read back into pydantic objects, whole and in pieces."""
    options: dict[str, Any] = {"model": model, "messages": HI, "max_tokens": 300, "seed": 1}
    whole = client.chat.completions.parse(response_format=Person, **options)
    person = whole.choices[0].message.parsed
    assert isinstance(person, Person)
    with client.chat.completions.stream(response_format=Person, **options) as stream:
        kinds = {event.type for event in stream}
        assert stream.get_final_completion().choices[0].message.parsed == person
    assert {"content.delta", "content.done"} <= kinds
    options |= {"tools": [openai.pydantic_function_tool(Weather)], "tool_choice": "required"}
    with client.chat.completions.stream(parallel_tool_calls=False, **options) as stream:
        kinds = {event.type for event in stream}
        [call] = stream.get_final_completion().choices[0].message.tool_calls or []
    assert "tool_calls.function.arguments.done" in kinds
    assert isinstance(call.function.parsed_arguments, Weather)


def parsed_responses(client: OpenAI, model: str) -> None:
    """The same of the Responses API, with its events in their order."""
    options: dict[str, Any] = {"model": model, "input": "Who?", "max_output_tokens": 300}
    options |= {"extra_body": {"seed": 1}}
    person = client.responses.parse(text_format=Person, **options).output_parsed
    assert isinstance(person, Person)
    with client.responses.stream(text_format=Person, **options) as stream:
        kinds = list(dict.fromkeys(event.type for event in stream))
        assert stream.get_final_response().output_parsed == person
    assert kinds == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    options |= {"tools": [openai.pydantic_function_tool(Weather)], "tool_choice": "required"}
    with client.responses.stream(parallel_tool_calls=False, **options) as stream:
        kinds = list(dict.fromkeys(event.type for event in stream))
        call: Any = stream.get_final_response().output[0]
    assert kinds[3:5] == [
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
    ]
    assert isinstance(call.parsed_arguments, Weather)


def asynchronous(client: OpenAI, model: str) -> None:
    """Requests at the same time through the asynchronous client: each as it is alone."""
    wanted = client.chat.completions.create(model=model, **SHORT).choices[0].message.content

    async def ask_all() -> list[str | None]:
        async with AsyncOpenAI(
            base_url=client.base_url, api_key=client.api_key, max_retries=0
        ) as other:
            asked = (other.chat.completions.create(model=model, **SHORT) for _ in range(4))
            found = [one.choices[0].message.content for one in await asyncio.gather(*asked)]
            stream = await other.chat.completions.create(model=model, stream=True, **SHORT)
            pieces = [piece.choices[0].delta.content or "" async for piece in stream]
            return [*found, "".join(pieces)]

    assert asyncio.run(ask_all()) == [wanted] * 5


def embeddings(client: OpenAI, model: str) -> None:
    """Vectors of length one; the client asks for base64 by itself."""
    found = client.embeddings.create(model=model, input=["Once", "Twice"])
    assert [entry.index for entry in found.data] == [0, 1]
    for entry in found.data:
        assert abs(sum(value**2 for value in entry.embedding) - 1) < 1e-4
    plain = client.embeddings.create(model=model, input="Once", encoding_format="float")
    gaps = zip(plain.data[0].embedding, found.data[0].embedding, strict=True)
    assert max(abs(one - other) for one, other in gaps) < 1e-5


def scoring(client: OpenAI, model: str) -> None:
    """The log-probabilities of a prompt, without an output."""
    options: dict[str, Any] = {"model": model, "echo": True, "logprobs": 1}
    choice = client.completions.create(prompt="Once more", max_tokens=0, **options).choices[0]
    assert choice.text == "Once more"
    assert choice.logprobs is not None
    first, *others = choice.logprobs.token_logprobs or []
    assert first is None
    assert others
    assert all(value <= 0 for value in others)


def failures(client: OpenAI, model: str) -> None:
    """Errors of the right class, with their fields."""
    for kind, status, param, call in (
        (openai.BadRequestError, 400, "temperature", lambda: ask(client, model, temperature=3)),
        (openai.BadRequestError, 400, "messages", lambda: ask(client, model, messages=[])),
        (
            openai.BadRequestError,
            400,
            "temprature",
            lambda: ask(client, model, extra_body={"temprature": 1}),
        ),
        (openai.NotFoundError, 404, "model", lambda: ask(client, "no-such-model")),
        (
            openai.AuthenticationError,
            401,
            None,
            lambda: ask(client.with_options(api_key="wrong-key"), model),
        ),
    ):
        error = raised(kind, call)
        assert (error.status_code, error.param) == (status, param)
        assert error.request_id


def raised(kind: type[openai.APIStatusError], call: Callable[[], Any]) -> openai.APIStatusError:
    """The error that this call must end in."""
    try:
        call()
    except kind as error:
        return error
    raise AssertionError(f"{kind.__name__} was not raised")


def ask(client: OpenAI, model: str, **fields: Any) -> Any:
    """A short request with these fields."""
    return client.chat.completions.create(model=model, **{**SHORT, **fields})


def models(client: OpenAI, model: str) -> None:
    """The model is listed."""
    assert [entry.id for entry in client.models.list()] == [model]
    assert client.models.retrieve(model).object == "model"


CHECKS: tuple[Check, ...] = (
    chat,
    completions,
    streaming,
    stopping,
    choices,
    logprobs,
    biasing,
    penalties,
    predicting,
    schema,
    tools,
    responses,
    parsing,
    parsed_responses,
    asynchronous,
    embeddings,
    scoring,
    failures,
    models,
)


def main(url: str, model: str, key: str) -> None:
    """Run every check and say which."""
    with OpenAI(base_url=url, api_key=key, max_retries=0) as client:
        for check in CHECKS:
            check(client, model)
            print("ok", check.__name__)


if __name__ == "__main__":
    main(*sys.argv[1:])

"""The Ollama API: lines of JSON, options, formats, tools, lists of models and errors."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.helpers.api_answers import said
from tests.helpers.asgi_client import HOST, Answer, Served, model, served
from tests.helpers.attacked_server import AUTH, KEY
from tests.helpers.named_events import fail_after_one
from tests.helpers.speaking_model import speaking

pytestmark = pytest.mark.usefixtures("own_cache")
HI = [{"role": "user", "content": "Hi"}]
GREEDY = {"temperature": 0, "num_predict": 8}
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'


@pytest.fixture(scope="module")
def toy(own_cache: None) -> Iterator[Served]:
    with served(model(context=1024)) as one:
        yield one


def chat(one: Served, **fields: Any) -> Answer:
    given = {"model": "toy", "messages": HI, "stream": False, "options": GREEDY}
    return one.post("/api/chat", {**given, **fields})


def generate(one: Served, **fields: Any) -> Answer:
    given = {"model": "toy", "prompt": "Hi", "stream": False, "options": GREEDY}
    return one.post("/api/generate", {**given, **fields})


def lines(answer: Answer) -> list[dict[str, Any]]:
    assert answer.status == 200, answer.body
    assert answer.headers["content-type"] == "application/x-ndjson"
    *found, rest = answer.body.split(b"\n")
    assert rest == b""
    return [json.loads(line) for line in found]


def refused(answer: Answer, status: int = 400) -> str:
    assert answer.status == status, answer.body
    assert set(answer.json) == {"error"}
    return str(answer.json["error"])


def test_a_chat_has_the_text_and_counts_of_the_openai_route(toy: Served) -> None:
    wanted = toy.chat()
    record = chat(toy).json
    assert record["message"] == {"role": "assistant", "content": said(wanted)[0]}
    reason = wanted.json["choices"][0]["finish_reason"]
    assert (record["model"], record["done"], record["done_reason"]) == ("toy", True, reason)
    used = wanted.json["usage"]
    assert record["prompt_eval_count"] == used["prompt_tokens"]
    assert record["eval_count"] == used["completion_tokens"] > 0
    assert record["total_duration"] >= record["eval_duration"] > 0
    assert record["created_at"].endswith("Z")


def test_a_stream_is_lines_of_json_and_the_default(toy: Served) -> None:
    whole = chat(toy).json
    answer = toy.post("/api/chat", {"model": "toy", "messages": HI, "options": GREEDY})
    *parts, last = lines(answer)
    assert "".join(part["message"]["content"] for part in parts) == whole["message"]["content"]
    assert all(part["done"] is False and "eval_count" not in part for part in parts)
    for name in ("done", "done_reason", "eval_count", "prompt_eval_count"):
        assert last[name] == whole[name]
    assert last["message"] == {"role": "assistant", "content": ""}
    *parts, last = lines(generate(toy, stream=True))
    assert "".join(part["response"] for part in parts) == generate(toy).json["response"]
    assert (last["done"], last["response"]) == (True, "")


def test_a_prompt_is_a_turn_of_the_user_unless_it_is_raw(toy: Served) -> None:
    assert generate(toy).json["response"] == said(toy.chat())[0]
    system = [{"role": "system", "content": "Be."}, *HI]
    assert generate(toy, system="Be.").json["response"] == said(toy.chat(messages=system))[0]
    wanted = toy.complete().json
    record = generate(toy, raw=True).json
    assert record["response"] == wanted["choices"][0]["text"]
    assert record["prompt_eval_count"] == wanted["usage"]["prompt_tokens"]
    assert "system" in refused(generate(toy, raw=True, system="Be."))
    # without num_predict there is no limit but the context's
    with served(model(context=40)) as small:
        record = generate(small, raw=True, options={"temperature": 0}).json
        assert record["eval_count"] > 16


OPTIONS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"temperature": 0.7, "seed": 5, "top_p": 0.9}, {"temperature": 0.7, "seed": 5, "top_p": 0.9}),
    ({"temperature": 1.5, "seed": 5, "top_k": 2}, {"temperature": 1.5, "seed": 5, "top_k": 2}),
    ({"temperature": 1, "seed": 5, "min_p": 0.2}, {"temperature": 1, "seed": 5, "min_p": 0.2}),
    (
        {"temperature": 0, "repeat_penalty": 1.8, "presence_penalty": 0.5},
        {"temperature": 0, "repetition_penalty": 1.8, "presence_penalty": 0.5},
    ),
]


@pytest.mark.parametrize(("options", "fields"), OPTIONS, ids=lambda value: str(value)[:40])
def test_options_mean_what_the_fields_of_chats_mean(
    toy: Served, options: dict[str, Any], fields: dict[str, Any]
) -> None:
    wanted = toy.chat(max_tokens=16, **fields)
    got = chat(toy, options={**options, "num_predict": 16})
    assert got.json["message"]["content"] == said(wanted)[0]


def test_stop_strings_and_ends() -> None:
    with served(model("One two three", recipe="plain"), "plain") as one:
        record = chat(one, options={"temperature": 0}).json
        assert (record["message"]["content"], record["done_reason"]) == ("One two three", "stop")
        for stop in (" tw", [" tw", "zz"]):
            record = chat(one, options={"temperature": 0, "stop": stop}).json
            assert (record["message"]["content"], record["done_reason"]) == ("One", "stop")
        unlimited = chat(one, options={"temperature": 0, "num_predict": -1}).json
        assert unlimited["message"]["content"] == "One two three"


def test_formats(toy: Served) -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"const": 1}},
        "required": ["a"],
        "additionalProperties": False,
    }
    long = {"temperature": 0, "num_predict": 60}
    assert chat(toy, format=schema, options=long).json["message"]["content"] == '{"a": 1}'
    assert generate(toy, format=schema, options=long).json["response"] == '{"a": 1}'
    short = chat(toy, format="json").json["message"]["content"]
    assert short.startswith("{")
    assert chat(toy, format="").json["message"]["content"] == said(toy.chat())[0]
    assert "format" in refused(chat(toy, format="yaml"))
    assert "format" in refused(chat(toy, format={"type": "nonsense"}))
    assert "format" in refused(chat(toy, format={"enum": [10**309]}))


def test_calls_are_objects_whole_and_in_lines() -> None:
    with served(model(f"See. {CALL}\n{CALL}", context=1024, recipe="plain"), "plain") as one:
        options = {"temperature": 0}
        whole = chat(one, tools=[TOOL], options=options).json["message"]
        names = [call["function"]["name"] for call in whole["tool_calls"]]
        assert names == ["weather", "weather"]
        assert whole["tool_calls"][0]["function"]["arguments"] == {"city": "Rome"}
        assert whole["content"] == "See."
        parts = lines(chat(one, tools=[TOOL], options=options, stream=True))
        calls = [call for part in parts for call in part["message"].get("tool_calls", ())]
        assert [call["function"] for call in calls] == [
            {"name": "weather", "arguments": {"city": "Rome"}, "index": index} for index in (0, 1)
        ]
        text = "".join(part["message"]["content"] for part in parts)
        assert "tool_call" not in text
        assert text.strip() == "See."
        # a call that is cut has no arguments to be called with
        cut = {"temperature": 0, "num_predict": 40}
        short = chat(one, tools=[TOOL], options=cut).json
        assert (short["done_reason"], short["message"].get("tool_calls")) == ("length", None)


def test_results_of_tools_belong_to_calls(toy: Served) -> None:
    def asked(*results: dict[str, Any], identity: bool = False) -> Answer:
        call: dict[str, Any] = {"function": {"name": "weather", "arguments": {"city": "Rome"}}}
        if identity:
            call["id"] = "c9"
        turn = {"role": "assistant", "tool_calls": [call]}
        return chat(toy, tools=[TOOL], messages=[*HI, turn, *results])

    call = {
        "id": "x",
        "type": "function",
        "function": {"name": "weather", "arguments": '{"city": "Rome"}'},
    }
    turns = [
        *HI,
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "x", "content": "wet"},
    ]
    wanted = said(toy.chat(tools=[TOOL], messages=turns))[0]
    result = {"role": "tool", "content": "wet"}
    for answer in (
        asked(result),
        asked({**result, "tool_name": "weather"}),
        asked({**result, "tool_call_id": "c9"}, identity=True),
    ):
        assert answer.json["message"]["content"] == wanted
    for bad in ((result, result), ({**result, "tool_name": "other"},)):
        assert "must answer a tool call" in refused(asked(*bad))


def test_log_probabilities(toy: Served) -> None:
    wanted = toy.chat(logprobs=True, top_logprobs=2).json["choices"][0]["logprobs"]["content"]
    assert chat(toy, logprobs=True, top_logprobs=2).json["logprobs"] == wanted
    parts = lines(chat(toy, logprobs=True, top_logprobs=2, stream=True))
    assert [one for part in parts for one in part.get("logprobs", ())] == wanted
    assert "logprobs" not in chat(toy).json


def test_thinking_stands_apart_from_the_text(toy: Served) -> None:
    template = "{% for message in messages %}{{ message.content }}{% endfor %}<bot>{# </think> #}"
    template += "{% if enable_thinking is defined and not enable_thinking %}OFF{% endif %}"
    with served(speaking("<think>\nHm.\n</think>\n\nYes.", template), "plain") as one:
        options = {"temperature": 0, "num_predict": 99}
        for think in (None, True, "high"):
            message = chat(one, think=think, options=options).json["message"]
            assert (message["thinking"], message["content"]) == ("Hm.", "Yes.")
        record = generate(one, options=options).json
        assert (record["thinking"], record["response"]) == ("Hm.", "Yes.")
        parts = [part["message"] for part in lines(chat(one, options=options, stream=True))]
        assert "".join(part.get("thinking", "") for part in parts) == "Hm."
        assert "".join(part["content"] for part in parts) == "Yes."
        counts = [chat(one, think=think).json["prompt_eval_count"] for think in (True, False)]
        assert counts[1] - counts[0] == len("OFF")
    assert "no thinking" in refused(chat(toy, think=True))
    assert "think" in refused(chat(toy, think="enormously"))
    assert chat(toy, think=False).status == 200


WRONG_OPTIONS: list[tuple[dict[str, Any], str]] = [
    ({"mirostat": 2}, "options.mirostat"),
    ({"temprature": 1}, "options.temprature"),
    ({"temprature": 1}, "did you mean 'temperature'"),
    ({"num_predict": "x"}, "options.num_predict"),
    ({"num_predict": 999_999}, "num_predict is 999999"),
    ({"repeat_last_n": 64, "repeat_penalty": 1.1}, "options.repeat_last_n"),
    ({"temperature": 9}, "options.temperature"),
    ({"stop": ["a"] * 99}, "options.stop"),
]
WRONG_FIELDS: list[tuple[dict[str, Any], str]] = [
    ({"images": ["aGk="]}, "images"),
    ({"suffix": "x"}, "suffix"),
    ({"template": "{{ .Prompt }}"}, "template"),
    ({"context": [1, 2]}, "context"),
    ({"nonsense": 1}, "unknown field 'nonsense'"),
]


def test_unused_options_are_named_and_others_refused(toy: Served) -> None:
    taken = {"num_ctx": 4096, "num_gpu": 1, "mirostat": 0, "tfs_z": 1, "repeat_last_n": 64}
    answer = chat(toy, options={**GREEDY, **taken}, keep_alive="5m")
    assert answer.json["message"]["content"] == said(toy.chat())[0]
    assert answer.headers["x-sapwood-ignored"] == "keep_alive, options.num_ctx, options.num_gpu"
    for options, words in WRONG_OPTIONS:
        assert words in refused(chat(toy, options=options)), options
    for fields, words in WRONG_FIELDS:
        assert words in refused(generate(toy, **fields)), fields
    assert generate(toy, nonsense=None).status == 200
    assert generate(toy, suffix="", images=[], context=None).status == 200
    picture = [{"role": "user", "content": "Hi", "images": ["aGk="]}]
    assert "messages[0].images" in refused(chat(toy, messages=picture))
    assert "messages[0].content" in refused(chat(toy, messages=[{"role": "user"}]))


def test_a_request_without_a_prompt_asks_for_the_model_alone(toy: Served) -> None:
    without: list[list[Any] | None] = [[], None]
    for messages in without:
        record = chat(toy, messages=messages).json
        assert (record["done"], record["done_reason"]) == (True, "load")
        assert record["message"]["content"] == ""
    assert generate(toy, prompt="").json["done_reason"] == "load"
    assert "options.top_k" in refused(chat(toy, messages=[], options={"top_k": -5}))


def test_models(toy: Served) -> None:
    [listed] = toy.get("/api/tags").json["models"]
    assert (listed["name"], listed["model"], len(listed["digest"])) == ("toy", "toy", 64)
    [loaded] = toy.get("/api/ps").json["models"]
    assert (loaded["name"], loaded["context_length"]) == ("toy", 1024)
    for body in ({"model": "toy"}, {"name": "toy:latest"}, {}):
        shown = toy.post("/api/show", body).json
        family = shown["model_info"]["general.architecture"]
        assert shown["model_info"][f"{family}.context_length"] == 1024
        assert {"completion", "tools"} <= set(shown["capabilities"])
    from sapwood import __version__

    assert toy.get("/api/version").json == {"version": __version__}
    assert chat(toy, model="toy:latest").json["model"] == "toy"
    unknown: list[tuple[str, dict[str, Any]]] = [
        ("/api/show", {"model": "other"}),
        ("/api/chat", {"model": "other", "messages": HI}),
        ("/api/generate", {"model": "toy:7b", "prompt": "Hi"}),
    ]
    for path, asked in unknown:
        assert "not served here" in refused(toy.post(path, asked), 404)
    refused(toy.post("/api/pull", {"model": "toy"}), 404)
    refused(toy.get("/api/chat"), 405)


def test_embeddings(toy: Served) -> None:
    # the toy has no hidden states; the route says so in this API's form
    assert "hidden states" in refused(toy.post("/api/embed", {"model": "toy", "input": "Hi"}))
    assert "unknown field" in refused(toy.post("/api/embed", {"input": "Hi", "nonsense": 1}))


def test_commands_of_ollamas_documentation_name_no_type(toy: Served) -> None:
    body = json.dumps({"model": "toy", "prompt": "Hi", "stream": False, "options": GREEDY}).encode()
    form = ("content-type", "application/x-www-form-urlencoded")  # as curl -d sends it
    page = ("origin", "http://127.0.0.1:8000")
    for headers, status in (
        ((HOST,), 200),
        ((HOST, form), 200),
        ((HOST, form, page), 415),  # a page can send a form without being asked for its right
        ((HOST, form, ("sec-fetch-site", "none")), 415),
        ((HOST, ("content-type", "text/plain")), 415),
    ):
        answer = toy.run(toy.ask("POST", "/api/generate", body, headers))
        assert answer.status == status, (headers, answer.body)


def test_errors_have_ollamas_form(toy: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "JSON" in refused(toy.post("/api/chat", b"{"))
    assert "'model' is given twice" in refused(
        toy.post("/api/chat", b'{"model":"toy","model":"toy"}')
    )
    fail_after_one(toy, monkeypatch)
    found = lines(generate(toy, stream=True))
    assert found[-1] == {"error": "too many"}


def test_keys_open_these_routes_too(locked: Served) -> None:
    assert "API key" in refused(locked.get("/api/tags"), 401)
    assert locked.get("/api/tags", AUTH).status == 200
    assert KEY not in locked.get("/api/tags").body.decode()


def test_lines_are_padded_to_even_sizes_at_a_cadence() -> None:
    with served(cadence_ms=1) as one:
        body = chat(one, stream=True).body
        assert {len(line) % 256 for line in body.split(b"\n")[:-1]} == {255}
        assert json.loads(body.split(b"\n")[0])["model"] == "toy"

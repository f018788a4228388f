"""Fields of vLLM and llama.cpp: mapped where they mean something here, else refused."""

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from sapwood.errors import SapwoodError
from sapwood.server.openai.unknown_fields import NEUTRAL, REFUSED, UNUSED
from sapwood.structured_output.gbnf import LONGEST, gbnf_or_lark
from tests.helpers.api_answers import said
from tests.helpers.asgi_client import Served, served
from tests.helpers.attacked_server import CHAT, TEXT, refused

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture(scope="module")
def toy(own_cache: None) -> Iterator[Served]:
    with served() as one:
        yield one


def test_the_served_model_is_meant_where_none_is_named(toy: Served) -> None:
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 8, "temperature": 0}
    for fields in ({}, {"model": None}):
        answer = toy.post(CHAT, {**body, **fields})
        assert said(answer) == said(toy.chat())
        assert answer.json["model"] == "toy"
    assert toy.chat(model="").status == 404


SCHEMA = {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"]}
STRICT = {**SCHEMA, "additionalProperties": False}
GBNF = 'root ::= "x" digit{2}\ndigit ::= [7]'
FORMATS: list[tuple[dict[str, Any], str]] = [
    ({"guided_json": STRICT}, '{"a": 1}'),
    ({"guided_json": json.dumps(STRICT)}, '{"a": 1}'),
    ({"guided_regex": "abc"}, "abc"),
    ({"guided_choice": ['say "no"\n']}, 'say "no"\n'),
    ({"guided_grammar": GBNF}, "x77"),
    ({"guided_grammar": 'start: "lark"'}, "lark"),
    ({"structured_outputs": {"json": STRICT, "regex": None}}, '{"a": 1}'),
    ({"structured_outputs": {"choice": ["b"]}}, "b"),
    ({"structured_outputs": {"regex": "c"}}, "c"),
    ({"structured_outputs": {"grammar": GBNF}}, "x77"),
    ({"json_schema": STRICT}, '{"a": 1}'),
    ({"grammar": GBNF}, "x77"),
    ({"grammar": GBNF, "response_format": {"type": "text"}}, "x77"),
]


@pytest.mark.parametrize(("fields", "text"), FORMATS, ids=lambda value: str(value)[:40])
def test_formats_of_other_servers_hold_the_output(
    toy: Served, fields: dict[str, Any], text: str
) -> None:
    assert said(toy.chat(max_tokens=60, **fields)) == [text]
    assert toy.complete(max_tokens=60, **fields).json["choices"][0]["text"] == text


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"guided_json": "{"}, "guided_json"),
    ({"guided_json": "5"}, "guided_json"),
    ({"guided_regex": "("}, "guided_regex"),
    ({"guided_choice": []}, "guided_choice"),
    ({"guided_choice": [""]}, "guided_choice"),
    ({"guided_choice": ["a"] * 2000}, "guided_choice"),
    ({"guided_grammar": "root ::= ("}, "guided_grammar"),
    ({"grammar": "root ::= missing"}, "grammar"),
    ({"grammar": ""}, "grammar"),
    ({"structured_outputs": {}}, "structured_outputs"),
    ({"structured_outputs": {"regex": "a", "json": {}}}, "structured_outputs"),
    ({"structured_outputs": {"regex": 5}}, "structured_outputs"),
    ({"structured_outputs": {"structural_tag": "x"}}, "structured_outputs.structural_tag"),
    ({"grammar": GBNF, "guided_regex": "a"}, "grammar"),
    ({"response_format": {"type": "json_object"}, "guided_regex": "a"}, "guided_regex"),
    ({"repeat_penalty": 1.1, "repetition_penalty": 1.2}, "repetition_penalty"),
    ({"n_predict": 7}, "max_tokens"),
    ({"n_predict": -2}, "n_predict"),
]


@pytest.mark.parametrize(("fields", "param"), WRONG, ids=lambda value: str(value)[:40])
def test_what_is_wrong_is_named_as_it_was_sent(
    toy: Served, fields: dict[str, Any], param: str
) -> None:
    assert refused(toy, **fields)["param"] == param


def test_other_names_of_fields(toy: Served) -> None:
    options = {"temperature": 0, "ignore_eos": True}
    repeated = toy.chat(repeat_penalty=0.05, **options)
    assert said(repeated) == said(toy.chat(repetition_penalty=0.05, **options))
    assert said(repeated) != said(toy.chat(**options))
    for count in (0, 5):
        answer = toy.complete(max_tokens=None, n_predict=count, **options).json
        assert answer["usage"]["completion_tokens"] == count
    answer = toy.complete(max_tokens=None, n_predict=-1, prompt=[5] * 480, **options).json
    assert answer["usage"]["completion_tokens"] == 32


def test_variables_of_the_chat_template(toy: Served) -> None:
    tokenizer = toy.api.request_builder.prompts.tokenizer
    before = tokenizer.template
    object.__setattr__(tokenizer, "template", f"{before}{{{{ mood }}}}")
    try:
        plain = toy.chat().json["usage"]["prompt_tokens"]
        answer = toy.chat(chat_template_kwargs={"mood": "<bot>!", "unused": [1]})
        assert answer.json["usage"]["prompt_tokens"] == plain + len("<bot>!")
    finally:
        object.__setattr__(tokenizer, "template", before)
    for name in ("messages", "tools", "bos_token", "tick_of_sandbox", "_x", "a b"):
        param = refused(toy, chat_template_kwargs={name: 1})["param"]
        assert param == f"chat_template_kwargs.{name}"
    deep: Any = 1
    for _ in range(40):
        deep = [deep]
    assert refused(toy, chat_template_kwargs={"x": deep})["param"] == "chat_template_kwargs"


def test_what_changes_nothing_is_accepted_and_the_rest_refused_with_the_reason(toy: Served) -> None:
    assert set(NEUTRAL) <= set(REFUSED)
    assert not set(UNUSED) & set(REFUSED)
    for value in range(2):
        fields = {name: values[value % len(values)] for name, values in NEUTRAL.items()}
        answer = toy.chat(**fields, **dict.fromkeys(UNUSED, value))
        assert said(answer) == said(toy.chat())
    for name, reason in REFUSED.items():
        if name == "echo":
            continue
        error = refused(toy, TEXT, **{name: 0.77})
        assert error["param"] == name
        assert reason in error["message"]


def test_a_grammar_that_is_slow_to_convert_is_refused_soon() -> None:
    for rules in (
        "\n" * 60_000 + "root ::= $",
        "root ::= " + " \n" * (LONGEST // 2 - 8) + '"a"',
        "root ::= x\n" + "# c\n\n" * (LONGEST // 6) + "$",
        "root ::= " + "(" * (LONGEST - 10),
        "root ::= " + '"a" | ' * (LONGEST // 7),
    ):
        began = time.thread_time()  # which a busy machine does not lengthen
        with pytest.raises(SapwoodError, match="the grammar"):
            gbnf_or_lark(rules + "$")
        assert time.thread_time() - began < 2

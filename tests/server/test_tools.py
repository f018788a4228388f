"""Tools: what they ask of an answer, how they are told, and how calls are read back."""

import json
from functools import cache
from typing import Any

import jsonschema
import pytest

from sapwood import LLM
from sapwood.backends.toy import ToyBackend
from sapwood.errors import SapwoodError
from sapwood.server.openai.model_formats import call_format
from sapwood.server.openai.output_formats import format_of
from sapwood.server.openai.output_parser import KnownFunctions, split_sections
from sapwood.server.openai.tool_calls import constrained_calls, free_calls, visible_length
from sapwood.server.openai.tools import (
    CLOSE,
    OPEN,
    describe_tools,
    output_rules,
    read_choice,
    read_tools,
)
from sapwood.structured_output import json_schema
from sapwood.structured_output.compiled import compiled
from sapwood.structured_output.grammar_matcher import GrammarMatcher
from tests.helpers import byte_tokenizer

WEATHER = {
    "type": "object",
    "properties": {
        "city": {"$ref": "#/$defs/city"},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
    "$defs": {"city": {"enum": ["Oslo", "Rome"]}},
}


def tool(name: str = "weather", schema: Any = WEATHER, **more: Any) -> dict[str, Any]:
    return {
        "type": "function",
        "function": {"name": name, "description": f"The {name}.", "parameters": schema, **more},
    }


def named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


TOOLS = [tool(), tool("stop", None)]


def allows(grammar: Any, said: str) -> bool:
    """True where the grammar lets a text be said and end."""
    text = byte_tokenizer.text()
    rules = compiled(grammar, text, byte_tokenizer.SIZE)
    guide = GrammarMatcher(rules)
    tokens = text.encode(said, whole=False)
    if not guide.allows(tokens):
        return False
    state = guide.state(tokens)
    return state is not None and bool(state.allowed()[byte_tokenizer.EOS])


def grammar_of(
    response_format: Any, tools: Any = None, choice: Any = None, *, parallel: bool = True
) -> Any:
    """The grammar of these fields of a request."""
    form = format_of(response_format)
    return output_rules(form, *read_choice(choice, read_tools(tools)), parallel=parallel)[0]


def call(name: str = "weather", **arguments: Any) -> str:
    inner = json.dumps({"name": name, "arguments": arguments})
    return f"{OPEN}\n{inner}\n{CLOSE}"


# --------------------------------------------------------------------------------------- grammars
RIGHT = call(city="Oslo", days=3)
WRONG = call(city="Bonn", days=3)


def test_free_text_needs_no_grammar() -> None:
    assert grammar_of(None) is None
    assert grammar_of({"type": "text"}) is None
    assert grammar_of(None, TOOLS) is None
    assert grammar_of(None, TOOLS, "none") is None
    assert grammar_of(None, None, "auto") is None


def test_response_formats() -> None:
    assert allows(grammar_of({"type": "json_object"}), '{"a": [1, null]}')
    assert not allows(grammar_of({"type": "json_object"}), "[1]")
    schema = {
        "type": "json_schema",
        "json_schema": {"name": "x", "strict": True, "schema": WEATHER},
    }
    assert grammar_of(schema) == json_schema(WEATHER)
    assert allows(grammar_of(schema), '{"city": "Rome", "days": 1}')
    assert not allows(grammar_of(schema), '{"city": "Rome", "days": 10}')
    assert grammar_of(schema, TOOLS, "none") == json_schema(WEATHER)
    assert allows(grammar_of({"type": "regex", "regex": "a+b"}), "aab")
    assert allows(grammar_of({"type": "lark", "lark": 'start: "a" start "b" | "c"'}), "aacbb")


def test_required_leaves_calls_alone() -> None:
    grammar = grammar_of(None, TOOLS, "required")
    assert allows(grammar, RIGHT)
    assert allows(grammar, call("stop"))
    assert allows(grammar, f"{RIGHT}\n{call('stop')}\n{RIGHT}")
    assert not allows(grammar, WRONG)
    assert not allows(grammar, "It rains.")
    assert not allows(grammar, call("other"))
    assert not allows(grammar, f"{RIGHT} so it rains")


def test_one_call_where_several_are_not_wanted() -> None:
    alone = grammar_of(None, TOOLS, "required", parallel=False)
    assert allows(alone, RIGHT)
    assert not allows(alone, f"{RIGHT}\n{RIGHT}")


def test_a_named_function_is_called_once() -> None:
    grammar = grammar_of(None, TOOLS, named("stop"))
    assert allows(grammar, call("stop"))
    assert not allows(grammar, RIGHT)
    assert not allows(grammar, f"{call('stop')}\n{call('stop')}")


def test_auto_holds_the_calls_of_strict_functions() -> None:
    grammar = grammar_of(None, [tool(strict=True)], "auto")
    assert allows(grammar, "It rains.")
    assert allows(grammar, f"Let me see. {RIGHT}")
    assert allows(grammar, f"{RIGHT}\nand\n{RIGHT}")
    assert not allows(grammar, f"Let me see. {WRONG}")
    assert not allows(grammar, f"{OPEN}{{}}")


def test_auto_beside_a_format() -> None:
    grammar = grammar_of({"type": "json_object"}, TOOLS)
    assert allows(grammar, '{"a": 1}')
    assert allows(grammar, RIGHT)
    assert not allows(grammar, "words")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (({"type": "yaml"},), "'yaml' is not known"),
        (({"type": "json_schema"},), "needs json_schema"),
        (({"type": "json_schema", "json_schema": {"schema": 3}},), "needs json_schema"),
        (({"type": "regex"},), "needs a text 'regex'"),
        ((None, [3]), r"tools\[0\] must be"),
        ((None, [{"type": "web_search"}]), r"tools\[0\] must be"),
        ((None, [tool("a b")]), "needs a name"),
        ((None, [tool("x" * 65)]), "needs a name"),
        ((None, [tool("f(.*)")]), "needs a name"),
        ((None, [tool(), tool()]), "two tools are called 'weather'"),
        ((None, [tool(schema=[1])]), "must be a JSON schema"),
        ((None, TOOLS, "sometimes"), "tool_choice must be"),
        ((None, TOOLS, {"type": "function"}), "tool_choice must be"),
        ((None, TOOLS, named("x")), "none of the tools"),
        ((None, [], "required"), "there are no tools"),
        ((None, [tool(schema={"enum": list(range(5000))})], "required"), "5000 choices"),
        (({"type": "regex", "regex": "a"}, TOOLS), "cannot stand beside"),
    ],
)
def test_what_cannot_be_is_refused(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(SapwoodError, match=message):
        grammar_of(*arguments)


def test_choices() -> None:
    tools = read_tools(TOOLS)
    assert read_choice(None, tools) == ("auto", tools)
    assert read_choice(None, []) == ("none", [])
    assert read_choice(named("stop"), tools) == ("named", tools[1:])
    assert [each.strict for each in read_tools([tool(strict=True), tool("b", strict=False)])] == [
        True,
        False,
    ]


# --------------------------------------------------------------------------------------- prompts
KNOWS = "{% for t in tools or [] %}[{{ t.function.name }}]{% endfor %}{% for m in messages %}{{ m.content }}{% endfor %}"
IGNORES = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
ASKED: list[dict[str, Any]] = [{"role": "user", "content": "Rain?"}]
HISTORY: list[dict[str, Any]] = [
    *ASKED,
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {
                "id": "1",
                "function": json.loads(
                    '{"name": "weather", "arguments": "{\\"city\\": \\"Oslo\\", \\"days\\": 1}"}'
                ),
            }
        ],
    },
    {"role": "tool", "content": "wet", "tool_call_id": "1"},
]


def test_a_template_that_knows_tools_is_given_them() -> None:
    messages, shown = describe_tools(ASKED, TOOLS, None, KNOWS)
    assert messages == ASKED
    assert shown == {"tools": TOOLS}
    assert describe_tools(ASKED, TOOLS, "none", KNOWS) == (ASKED, {})
    assert [
        each["function"]["name"]
        for each in describe_tools(ASKED, TOOLS, named("stop"), KNOWS)[1]["tools"]
    ] == ["stop"]
    opened, _ = describe_tools(HISTORY, TOOLS, None, KNOWS)
    assert opened[1]["tool_calls"][0]["function"]["arguments"] == {"city": "Oslo", "days": 1}


def test_other_templates_are_told_in_our_words() -> None:
    [system, user], shown = describe_tools(ASKED, TOOLS, None, IGNORES)
    assert shown == {}
    assert user == ASKED[0]
    assert system["role"] == "system"
    for expected in ('"name": "weather"', '"name": "stop"', OPEN, CLOSE, "Oslo", "answer in words"):
        assert expected in system["content"]
    [system, _], _ = describe_tools(ASKED, TOOLS, "required", IGNORES)
    assert "at least one" in system["content"]
    own = [{"role": "system", "content": "Be brief."}, *ASKED]
    [system, _], _ = describe_tools(own, TOOLS, named("stop"), IGNORES)
    assert system["content"].startswith("Be brief.\n\n")
    assert system["content"].endswith("Call stop now.")
    assert describe_tools(ASKED, TOOLS, "none", IGNORES) == (ASKED, {})


def test_earlier_calls_are_told_as_text() -> None:
    messages, _ = describe_tools(HISTORY, None, None, IGNORES)
    assert messages[1] == {"role": "assistant", "content": call(city="Oslo", days=1)}
    assert messages[2]["role"] == "user"
    assert "wet" in messages[2]["content"]
    broken = [
        {
            "role": "assistant",
            "content": "x",
            "tool_calls": [{"function": {"name": "f", "arguments": "{"}}],
        }
    ]
    assert '"arguments": "{"' in describe_tools(broken, None, None, IGNORES)[0][0]["content"]


# --------------------------------------------------------------------------------------- read back
def calls_of(text: str, *names: str) -> tuple[str, list[tuple[str, Any]]]:
    content, calls = free_calls(text, names)
    return content, [(each.name, json.loads(each.arguments)) for each in calls]


def test_calls_are_read_back() -> None:
    oslo = ("weather", {"city": "Oslo", "days": 3})
    assert calls_of("It rains.") == ("It rains.", [])
    assert calls_of(RIGHT) == ("", [oslo])
    assert calls_of(f"See: {RIGHT}\n{call('stop')}\n") == ("See:", [oslo, ("stop", {})])
    assert calls_of(f"{OPEN}[{json.dumps({'name': 'a', 'arguments': {}})}]{CLOSE}") == (
        "",
        [("a", {})],
    )
    assert calls_of('{"name": "f", "parameters": {"x": "é"}}') == ("", [("f", {"x": "é"})])
    assert calls_of(RIGHT.removesuffix(CLOSE)) == ("", [oslo])  # cut short right after its JSON


@pytest.mark.parametrize(
    "text",
    [
        f"{OPEN}not JSON{CLOSE} and more",
        f"{OPEN}" * 3,
        f"{OPEN}[1, 2]{CLOSE}",
        f'{OPEN}{{"name": 3, "arguments": {{}}}}{CLOSE}',
        f'{OPEN}{{"name": "f"}}{CLOSE}',
        '{"name": "Bob", "age": 3}',
        "[" * 100_000,
        f"{OPEN}{'[' * 100_000}{CLOSE}",
        "",
    ],
)
def test_what_is_no_call_stays_text(text: str) -> None:
    assert free_calls(text) == (text, [])


def test_only_known_functions_are_called() -> None:
    assert calls_of(RIGHT, "stop") == (RIGHT, [])
    assert calls_of(RIGHT, "stop", "weather")[1]


NASTY = call("stop", text=f"}} {CLOSE} {OPEN}", nested={"a": {"b": 1}})


@pytest.mark.parametrize("text", [RIGHT, f"{RIGHT}\n{NASTY}\n{RIGHT}", NASTY])
def test_calls_under_a_grammar_are_read_while_they_are_written(text: str) -> None:
    whole = constrained_calls(text, done=True)[1]
    assert [json.loads(each.arguments) for each in whole][-1]
    before: list[Any] = []
    for end in range(len(text) + 1):
        content, calls = constrained_calls(text[:end], done=False)
        assert content.strip() == ""
        assert len(calls) >= len(before)
        for old, new, last in zip(before, calls, whole, strict=False):
            assert new.arguments.startswith(old.arguments)
            assert last.arguments.startswith(new.arguments)
        before = calls
    assert before == whole


def test_a_cut_call_keeps_what_was_written_of_its_arguments() -> None:
    for end in range(RIGHT.index("arguments"), len(RIGHT)):
        content, calls = constrained_calls(RIGHT[:end], done=True)
        assert content == ""
        for each in calls:
            assert call(city="Oslo", days=3).startswith(
                f'{OPEN}\n{{"name": "weather", "arguments": {each.arguments}'
            )
    assert constrained_calls(RIGHT[: -len(CLOSE)], done=True)[1][0].arguments[-1] == "}"
    assert json.loads(constrained_calls(RIGHT.partition("3}")[0] + "3}", done=True)[1][0].arguments)


def test_text_waits_only_while_it_may_become_a_call() -> None:
    assert visible_length("a <tool", "text") == 2
    assert visible_length("a <tool>", "text") == 8
    assert split_sections('{"a', call_format(None), KnownFunctions(), done=False) == ("", [])
    assert visible_length('{"a', "answer") == 3
    assert visible_length("<tool_", "answer") == visible_length(RIGHT, "answer") == 0


# --------------------------------------------------------------------------------------- all of it
@cache
def llm() -> LLM:
    return LLM(
        ToyBackend("tools", vocab=byte_tokenizer.SIZE, context=2048),
        "auto",
        text=byte_tokenizer.text(),
    )


@pytest.mark.parametrize("seed", range(10))
def test_required_calls_are_valid_whatever_the_model(seed: int) -> None:
    grammar = grammar_of(None, TOOLS, "required", parallel=bool(seed % 2))
    done = llm().generate(
        "Say:", raw=True, temperature=1.0, seed=seed, max_tokens=1500, grammar=grammar
    )
    content, calls = constrained_calls(done.text, done=True)
    assert not content
    assert calls
    for each in calls:
        if each.name == "weather":
            jsonschema.validate(json.loads(each.arguments), WEATHER)
        assert each.name in ("weather", "stop")

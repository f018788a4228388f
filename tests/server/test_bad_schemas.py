"""Response formats and tools that cannot be are refused."""

from typing import Any

import pytest

from tests.helpers.asgi_client import Served
from tests.helpers.attacked_server import refused

pytestmark = pytest.mark.usefixtures("own_cache")


def nested(depth: int) -> Any:
    schema: Any = {"type": "integer"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


def tool(name: Any = "f", **more: Any) -> dict[str, Any]:
    return {
        "type": "function",
        "function": {"name": name, "parameters": {"type": "object"}, **more},
    }


FORMATS: dict[str, Any] = {
    "unknown type": {"type": "xml"},
    "no type": {},
    "no schema": {"type": "json_schema"},
    "a schema that is none": {"type": "json_schema", "json_schema": {"name": "a", "schema": 5}},
    "a bad type": {
        "type": "json_schema",
        "json_schema": {"name": "a", "schema": {"type": "nothing"}},
    },
    "depth": {"type": "json_schema", "json_schema": {"name": "a", "schema": nested(40)}},
    "nodes": {
        "type": "json_schema",
        "json_schema": {
            "name": "a",
            "schema": {"properties": {f"p{n}": {"type": "null"} for n in range(3000)}},
        },
    },
    "bytes": {
        "type": "json_schema",
        "json_schema": {"name": "a", "schema": {"const": "x" * 70_000}},
    },
    "choices": {
        "type": "json_schema",
        "json_schema": {"name": "a", "schema": {"enum": list(range(5000))}},
    },
    "a bad pattern": {
        "type": "json_schema",
        "json_schema": {"name": "a", "schema": {"type": "string", "pattern": "("}},
    },
    "a foreign reference": {
        "type": "json_schema",
        "json_schema": {"name": "a", "schema": {"$ref": "http://169.254.169.254/schema"}},
    },
    "an integer beyond every float": {
        "type": "json_schema",
        "json_schema": {"name": "a", "schema": {"enum": [10**309]}},
    },
    "a long regex": {"type": "regex", "regex": "a" * 5000},
    "30,000 parentheses": {"type": "regex", "regex": "(" * 30_000},  # CVE-2026-25048
    "huge repetition": {
        "type": "json_schema",
        "json_schema": {"name": "a", "schema": {"minItems": 10**9}},
    },
}


@pytest.mark.parametrize("wanted", FORMATS.values(), ids=FORMATS)
def test_a_format_that_cannot_be(attacked: Served, wanted: Any) -> None:
    assert refused(attacked, response_format=wanted)["param"] == "response_format"


TOOLS: dict[str, Any] = {
    "no function": [{"type": "function"}],
    "another type": [{"type": "web_search"}],
    "no name": [{"type": "function", "function": {}}],
    "a name with marks": [tool('f"} | ".*')],
    "a long name": [tool("f" * 100_000)],
    "two of a name": [tool(), tool()],
    "too many": [tool(f"f{number}") for number in range(129)],
    "a deep schema": [tool(parameters=nested(40))],
    "a bad schema": [tool(parameters=[5])],
    "an integer beyond every float": [
        tool(parameters={"type": "object", "properties": {"a": {"enum": [10**309]}}})
    ],
}


@pytest.mark.parametrize("tools", TOOLS.values(), ids=TOOLS)
def test_tools_that_cannot_be(attacked: Served, tools: Any) -> None:
    assert refused(attacked, tools=tools, tool_choice="required")["param"] == "tools"


@pytest.mark.parametrize(
    "choice", ["sometimes", "required", {"type": "function", "function": {"name": "g"}}, {}]
)
def test_a_choice_of_tools_that_are_not_there(attacked: Served, choice: Any) -> None:
    assert refused(attacked, tool_choice=choice)["param"] == "tool_choice"


SCHEMA = {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"]}


@pytest.mark.parametrize("kind", ["json_object", "json_schema"])
def test_a_schema_beside_the_type_is_kept(attacked: Served, kind: str) -> None:
    wanted = {"type": kind, "schema": {**SCHEMA, "additionalProperties": False}}
    answer = attacked.chat(response_format=wanted, max_tokens=40)
    assert answer.json["choices"][0]["message"]["content"] == '{"a": 1}'


UNKNOWN: dict[str, Any] = {
    "response_format.schema": {"response_format": {"type": "text", "schema": SCHEMA}},
    "response_format.strict": {"response_format": {"type": "json_object", "strict": True}},
    "response_format.json_schema.shape": {
        "response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA, "shape": 1}}
    },
    "tools[1].function.returns": {"tools": [tool(), tool("g", returns={})]},
    "tools[0].cache": {"tools": [{**tool(), "cache": True}]},
}


@pytest.mark.parametrize(("param", "fields"), UNKNOWN.items(), ids=UNKNOWN)
def test_an_unknown_member_is_refused_by_its_path(
    attacked: Served, param: str, fields: dict[str, Any]
) -> None:
    error = refused(attacked, **fields)
    assert (error["param"], error["code"]) == (param, "unknown_parameter")


def test_a_member_that_is_null_is_none(attacked: Served) -> None:
    assert attacked.chat(response_format={"type": "text", "schema": None}).status == 200
    assert attacked.chat(tools=[tool(returns=None, strict=None)]).status == 200


def test_the_field_that_is_wrong_is_named_beside_one_that_is_right(attacked: Served) -> None:
    assert refused(attacked, tools=[tool()], tool_choice="never")["param"] == "tool_choice"
    wrong = {"type": "xml"}
    assert refused(attacked, tools=[tool()], response_format=wrong)["param"] == "response_format"

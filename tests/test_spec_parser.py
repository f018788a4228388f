"""One spelling, `name(key=value)`: what is written reads back."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapwood.core.part import spell
from sapwood.errors import SapwoodError
from sapwood.spec_parser import PartSpec, read

TEXTS = st.text(st.characters(exclude_characters="'\"")) | st.sampled_from(
    ["it's", "C:\\models\\x", "org/name", "a + b"]
)
PLAIN = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXTS
)
VALUES = st.recursive(PLAIN, lambda inner: st.lists(inner, max_size=3), max_leaves=6)
NAMES = st.from_regex(r"[a-z][a-z0-9_-]{0,8}", fullmatch=True).filter(
    lambda name: name not in ("true", "false", "none")
)


def spelled(call: PartSpec) -> str:
    options = ", ".join(f"{key}={value_of(value)}" for key, value in call.options.items())
    return f"{call.name}({options})" if options else call.name


def value_of(value: Any) -> str:
    return spelled(value) if isinstance(value, PartSpec) else spell(value)


@given(NAMES, st.dictionaries(NAMES, VALUES, max_size=4))
def test_values_read_back(name: str, options: dict[str, Any]) -> None:
    call = PartSpec(name, options)
    assert read(spelled(call)) == call


@given(
    st.recursive(
        NAMES.map(PartSpec),
        lambda inner: st.builds(PartSpec, NAMES, st.dictionaries(NAMES, inner, max_size=3)),
    )
)
def test_nested_calls_read_back(call: PartSpec) -> None:
    assert read(spelled(call)) == call


@pytest.mark.parametrize(
    ("text", "call"),
    [
        ("best", PartSpec("best")),
        ("best()", PartSpec("best")),
        ("  draft-model ( model = 'a b' , ) ", PartSpec("draft-model", {"model": "a b"})),
        ("static(shape=[1, 2,3])", PartSpec("static", {"shape": [1, 2, 3]})),
        ("x(a=[])", PartSpec("x", {"a": []})),
        (
            "x(a=-1, b=+2, c=.5, d=1e-3, e=2.)",
            PartSpec("x", {"a": -1, "b": 2, "c": 0.5, "d": 1e-3, "e": 2.0}),
        ),
        (
            "x(a=true, b=false, c=none, d=iid)",
            PartSpec("x", {"a": True, "b": False, "c": None, "d": PartSpec("iid")}),
        ),
        (
            'x(a="it\'s", b=SmolLM2-135M.v1)',
            PartSpec("x", {"a": "it's", "b": PartSpec("SmolLM2-135M.v1")}),
        ),
        ("m(d=[a(n=1), b])", PartSpec("m", {"d": [PartSpec("a", {"n": 1}), PartSpec("b")]})),
    ],
)
def test_spellings(text: str, call: PartSpec) -> None:
    assert read(text) == call


def test_numbers_keep_their_kind() -> None:
    options = read("x(a=3, b=3.0)").options
    assert [type(options[key]) for key in "ab"] == [int, float]
    assert math.isclose(options["b"], 3)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "it names 0"),
        ("3", "'3' is not a name"),
        ("'best'", "is not a name"),
        ("best(", "expected more before"),
        ("best(estimator", "expected ="),
        ("best(estimator=", "expected more"),
        ("best(estimator=raw", "expected ,"),
        ("best(=raw)", "is not a new option name"),
        ("best(a=1, a=2)", "'a' is not a new option name"),
        ("best(a=1) b", "expected . before 'b'"),
        ("best(a=[1, 2)", "expected ,"),
        ("best(a=1 b=2)", "expected ,"),
        ("best(a=12x)", "cannot read '12x'?"),
        ("best(a='open)", "cannot read"),
        ("best(a=))", "unexpected '\\)'"),
        ("best!", "cannot read '!'"),
    ],
)
def test_what_cannot_be_read_is_refused_in_one_sentence(text: str, reason: str) -> None:
    with pytest.raises(SapwoodError, match=reason) as caught:
        read(text)
    message = str(caught.value)
    assert message.startswith(repr(text))
    assert message.endswith("write name(key=value, ...), paths in quotes")
    assert "\n" not in message


def test_brackets_without_end() -> None:
    with pytest.raises(SapwoodError, match="nested too deeply"):
        read("static(shape=" + "[" * 5000)

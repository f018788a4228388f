"""Configurations of heads to JSON and back: what was not saved by us is refused by name."""

import json
from dataclasses import dataclass
from typing import Any

import pytest

from sapwood.errors import SapwoodError
from sapwood.heads.config_io import decode, encode, spell
from sapwood.heads.eagle3 import Eagle3Config
from sapwood.heads.layers import LayerShape


@dataclass(frozen=True)
class Inner:
    size: int
    scale: float = 1.0


@dataclass(frozen=True)
class Outer:
    inner: Inner
    name: str
    ids: tuple[int, ...] = ()
    pair: tuple[int, str] = (0, "")
    most: int | None = None
    fast: bool = False


FULL = Outer(Inner(3, 0.5), "one", (1, 2, 3), (4, "four"), 9, True)


@pytest.mark.parametrize("config", [FULL, Outer(Inner(1), "two")])
def test_a_config_comes_back_from_json(config: Outer) -> None:
    assert decode(Outer, json.loads(json.dumps(encode(config))), "config") == config


def test_a_heads_config_comes_back_from_json() -> None:
    shape = LayerShape(32, 4, 2, 8, 48, 1e-5, 50_000.0)
    config = Eagle3Config(shape, 32, 61, 20, (2, 4, 5), 128, True)
    assert decode(Eagle3Config, json.loads(json.dumps(encode(config))), "config") == config


def test_what_has_a_default_may_be_left_out() -> None:
    assert decode(Outer, {"inner": {"size": 3}, "name": "one"}, "config") == Outer(Inner(3), "one")


def test_whole_numbers_are_floats_where_those_belong() -> None:
    found = decode(Inner, {"size": 3, "scale": 2}, "config")
    assert found.scale == 2.0
    assert isinstance(found.scale, float)


def changed(**changes: Any) -> dict[str, Any]:
    record: dict[str, Any] = json.loads(json.dumps(encode(FULL)))
    for name, value in changes.items():
        if value is ...:
            del record[name]
        else:
            record[name] = value
    return record


@pytest.mark.parametrize(
    ("record", "words"),
    [
        (changed(name=...), "config lacks the field 'name'; save it again"),
        (changed(colour=1), "config has a field 'colour' that is not known"),
        (changed(name=7), "config.name must be str, not 7; save it again"),
        (changed(fast=1), "config.fast must be bool, not 1"),
        (changed(inner=[3]), r"config.inner must be an object, not \[3\]"),
        (changed(inner={"size": True}), "config.inner.size must be int, not True"),
        (changed(inner={"size": 3.0}), "config.inner.size must be int, not 3.0"),
        (changed(inner={"size": 3, "scale": "1"}), "config.inner.scale must be float, not '1'"),
        (changed(inner={"size": 3, "scale": 10**400}), "config.inner.scale must be float"),
        (changed(ids=[1, "2"]), r"config.ids\[1\] must be int, not '2'"),
        (changed(ids=5), r"config.ids must be tuple\[int, ...\], not 5"),
        (changed(pair=[1]), r"config.pair must be tuple\[int, str\], not \[1\]"),
        (changed(pair=["1", "x"]), r"config.pair\[0\] must be int"),
        (changed(most="9"), r"config.most must be int \| None, not '9'"),
        ([], r"config must be an object, not \[\]"),
        (None, "config must be an object, not None"),
    ],
    ids=range(16),
)
def test_every_fault_is_named(record: Any, words: str) -> None:
    with pytest.raises(SapwoodError, match=words):
        decode(Outer, record, "config")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_numbers_that_are_not_finite_are_refused(value: float) -> None:
    with pytest.raises(SapwoodError, match="config must be float"):
        decode(float, value, "config")


def test_types_are_spelt_as_readers_know_them() -> None:
    assert spell(int) == "int"
    assert spell(tuple[int, str]) == "tuple[int, str]"
    assert spell(int | None) == "int | None"

"""Dataclasses to JSON and back, strictly: unknown fields and wrong types are refused by name."""

import dataclasses
import types
import typing
from typing import Any

from sapwood.errors import SapwoodError

PLAIN = (int, bool, str, type(None))
HUGE = 1e300  # whole numbers above this are no floats


def encode(config: Any) -> dict[str, Any]:
    """Fields by name, for JSON."""
    return dataclasses.asdict(config)


def decode(kind: Any, value: Any, where: str) -> Any:
    """A value of this type from JSON; `where` names it in an error."""
    origin = typing.get_origin(kind)
    if dataclasses.is_dataclass(kind):
        return decode_fields(kind, value, where)
    if origin is tuple:
        return decode_tuple(kind, value, where)
    if origin in (types.UnionType, typing.Union):
        return decode_first(kind, value, where)
    if kind is float and type(value) in (int, float) and abs(value) < HUGE:
        return float(value)
    if kind in PLAIN and type(value) is kind:
        return value
    raise SapwoodError(f"{where} must be {spell(kind)}, not {value!r}; save it again")


def decode_fields(kind: Any, value: Any, where: str) -> Any:
    """A dataclass from an object: no unknown field, and none missing without a default."""
    if not isinstance(value, dict):
        raise SapwoodError(f"{where} must be an object, not {value!r}; save it again")
    hints = typing.get_type_hints(kind)
    fields = {item.name: item for item in dataclasses.fields(kind)}
    for name in value.keys() - fields.keys():
        raise SapwoodError(
            f"{where} has a field {name!r} that is not known; use the version that saved it"
        )
    for name, item in fields.items():
        optional = (
            item.default is not dataclasses.MISSING
            or item.default_factory is not dataclasses.MISSING
        )
        if name not in value and not optional:
            raise SapwoodError(f"{where} lacks the field {name!r}; save it again")
    return kind(
        **{
            name: decode(hints[name], value[name], f"{where}.{name}")
            for name in fields
            if name in value
        }
    )


def decode_tuple(kind: Any, value: Any, where: str) -> tuple[Any, ...]:
    """A tuple of a fixed or of any length."""
    kinds = typing.get_args(kind)
    if isinstance(value, list) and kinds[-1] is Ellipsis:
        kinds = kinds[:1] * len(value)
    if not isinstance(value, list) or len(value) != len(kinds):
        raise SapwoodError(f"{where} must be {spell(kind)}, not {value!r}; save it again")
    return tuple(
        decode(kind, item, f"{where}[{i}]")
        for i, (kind, item) in enumerate(zip(kinds, value, strict=True))
    )


def decode_first(kind: Any, value: Any, where: str) -> Any:
    """The first of several types that fits."""
    for option in typing.get_args(kind):
        try:
            return decode(option, value, where)
        except SapwoodError:
            continue
    raise SapwoodError(f"{where} must be {spell(kind)}, not {value!r}; save it again")


def spell(kind: Any) -> str:
    """The name of a type, for an error."""
    return kind.__name__ if isinstance(kind, type) and not typing.get_args(kind) else str(kind)

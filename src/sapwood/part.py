"""What every part shares: lifecycle defaults, copies, and one spelling, `name(key=value)`."""

import copy
import dataclasses
import enum
from collections.abc import Iterator
from functools import cache
from typing import Any, ClassVar, Self

from sapwood.errors import SapwoodError
from sapwood.protocols import Request, Setting
from sapwood.records import Outcome


class Part:
    """Base of all parts: a dataclass whose fields are its options; nested parts follow along."""

    name: ClassVar[str] = ""  # its word in the table of methods
    paper: ClassVar[str] = ""  # arXiv id or citation of the rule
    source: int = 0  # a drafter's bit in `Tree.sources`
    reads_laws: bool = False  # a policy's wish: drafters leave their whole laws in `Tree.laws`
    reads_scores: bool = False  # it observes the round's scores, which the next pass may overwrite

    @property
    def fan(self) -> int:
        """A drafter's number of voices: how many times the children asked for a node may get."""
        return 1

    def bind(self, setting: Setting) -> None:
        """Bind nested parts; nothing else to load."""
        for part in self.nested():
            part.bind(setting)

    def reset(self, request: Request) -> None:
        """Begin a request in nested parts."""
        for part in self.nested():
            part.reset(request)

    def observe(self, outcome: Outcome) -> None:
        """Let nested parts learn."""
        for part in self.nested():
            part.observe(outcome)

    def close(self) -> None:
        """Free what the request held."""
        for part in self.nested():
            part.close()

    def nested(self) -> Iterator["Part"]:
        """Parts that are options of this one."""
        kind: type = type(self)
        for name in option_names(kind):
            value = getattr(self, name)
            for item in value if isinstance(value, list) else [value]:
                if isinstance(item, Part):
                    yield item

    @property
    def hurried(self) -> bool:
        """True when this part, or one inside it, must observe a round before the next pass."""
        return self.reads_scores or any(part.hurried for part in self.nested())

    def fresh(self) -> Self:
        """A copy for one request: options and shared memory are the same objects, nested parts are copies."""
        clone = copy.copy(self)
        for option in options(self):
            value = getattr(self, option.name)
            if isinstance(value, Part):
                setattr(clone, option.name, value.fresh())
            elif isinstance(value, list):
                copies = [item.fresh() if isinstance(item, Part) else item for item in value]
                setattr(clone, option.name, copies)
        return clone

    def __str__(self) -> str:
        """The spelling that `recipe.parse` reads back; options at their default are left out."""
        changed = [
            f"{option.name}={spell(getattr(self, option.name))}"
            for option in options(self)
            if getattr(self, option.name) != default_of(option)
        ]
        name = self.name or type(self).__name__.lower()
        return f"{name}({', '.join(changed)})" if changed else name


def at_least(least: int, /, **values: int) -> None:
    """Refuse option values below their least."""
    for name, value in values.items():
        if value < least:
            raise SapwoodError(f"{name}={value} must be at least {least}")


def between(low: float, high: float, /, **values: float) -> None:
    """Refuse option values outside of their range."""
    for name, value in values.items():
        if not low <= value <= high:
            raise SapwoodError(f"{name}={value} must be from {low:g} to {high:g}")


def options(part: Part) -> tuple["dataclasses.Field[Any]", ...]:
    """The option fields of a part."""
    return dataclasses.fields(part) if dataclasses.is_dataclass(part) else ()


@cache
def option_names(kind: type) -> tuple[str, ...]:
    """Names of a kind of part's options."""
    return tuple(option.name for option in dataclasses.fields(kind)) if dataclasses.is_dataclass(kind) else ()


def default_of(option: "dataclasses.Field[Any]") -> Any:
    """The default value of an option."""
    if option.default_factory is not dataclasses.MISSING:
        return option.default_factory()
    return option.default


def spell(value: Any) -> str:
    """One option value as text."""
    if isinstance(value, enum.Enum):
        return str(value.value)
    if isinstance(value, list | tuple):
        return "[" + ", ".join(spell(item) for item in value) + "]"
    if isinstance(value, str):
        return f'"{value}"' if "'" in value else f"'{value}'"  # as it is: the reader knows no escapes
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)

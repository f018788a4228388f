"""The settings of a benchmark: temperatures, context lengths, batch sizes."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from sapwood.core.sampling import RANGES
from sapwood.errors import SapwoodError

Value = TypeVar("Value", float, int)

MOST = 1024  # requests that may share a pass


@dataclass(frozen=True, slots=True)
class SweepPoint:
    """One setting of a sweep."""

    temperature: float = 0.0
    context: int | None = None  # tokens that prompts are filled up to; None: as they are
    batch: int = 1  # requests that share a pass

    @property
    def label(self) -> str:
        """The values that are not the default."""
        words = [f"temperature {self.temperature:g}"] if self.temperature else []
        words += [f"context {self.context}"] if self.context is not None else []
        words += [f"batch {self.batch}"] if self.batch > 1 else []
        return ", ".join(words) or "greedy, one at a time"


def read_points(temperatures: str, contexts: str, batches: str) -> list[SweepPoint]:
    """All combinations of comma-separated values; an empty list is the default."""
    coldest, hottest = RANGES["temperature"]
    hot = numbers(
        temperatures,
        "temperature",
        float,
        lambda it: coldest <= it <= hottest,
        f"at least {coldest:g} and at most {hottest:g}",
    )
    filled = numbers(contexts, "context", int, lambda it: it >= 2, "a whole number of at least 2")
    shared = numbers(
        batches, "batch", int, lambda it: 1 <= it <= MOST, f"a whole number from 1 to {MOST}"
    )
    lengths: list[int | None] = [*filled] or [None]
    return [
        SweepPoint(*values) for values in itertools.product(hot or [0.0], lengths, shared or [1])
    ]


def numbers(
    text: str, name: str, kind: Callable[[str], Value], good: Callable[[Value], bool], rule: str
) -> list[Value]:
    """The values between commas, without duplicates."""
    found: list[Value] = []
    for word in filter(None, (word.strip() for word in text.split(","))):
        try:
            value = kind(word)
        except ValueError:
            value = None
        if value is None or not good(value):
            raise SapwoodError(f"{name}={word} must be {rule}; several are separated by commas")
        found.append(value)
    return list(dict.fromkeys(found))

"""What the benchmark and a peer's process say to each other."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


class Missing(Exception):
    """The peer is not installed; the text says how to install it."""


class Refused(Exception):
    """The peer is there but cannot do what is asked of it; the text says why."""


@dataclass(frozen=True, slots=True)
class Order:
    """What a peer is to load."""

    model: str  # as the benchmark was asked for it
    argument: str = ""  # what followed the colon in the peer's name
    device: str = "cpu"
    threads: int = 1
    context: int = 8192  # most tokens of a prompt with its answer


@dataclass(frozen=True, slots=True)
class Ask:
    """One prompt, to be continued greedily."""

    prompt: list[int]  # as the benchmark's own model reads it
    most: int  # tokens of the answer
    ends: list[int] = field(default_factory=list)  # tokens that end the text; none: it goes on
    text: str = ""  # the same prompt in words, special tokens shown


@dataclass(frozen=True, slots=True)
class Answer:
    """What a peer said and how long that took; the prompt's reading ends with the first token."""

    count: int  # tokens
    timed: int  # tokens that `seconds` covers: those after the first, or after the first round
    seconds: float
    reading: float  # seconds before the first token
    tokens: list[int] | None = None  # None where the peer gives words alone
    text: str | None = None
    memory: int | None = None  # most bytes the peer has held, weights included


@dataclass(frozen=True, slots=True)
class Opened:
    """A loaded peer."""

    decode: Callable[[Ask], Answer]
    weights: str  # which weights it runs, in words
    version: str = ""
    close: Callable[[], Any] = lambda: None

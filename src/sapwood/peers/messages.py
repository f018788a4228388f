"""Messages between the benchmark and a peer's process."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


class PeerMissing(Exception):
    """The peer is not installed; the message has the command that installs it."""


class PeerRefused(Exception):
    """The peer is installed but cannot run this; the message has the reason."""


@dataclass(frozen=True, slots=True)
class LoadMessage:
    """Model and options of a peer."""

    model: str  # as given to the benchmark
    argument: str = ""  # the text after the colon in the peer's name
    device: str = "cpu"
    threads: int = 1
    context: int = 8192  # most tokens of a prompt with its answer


@dataclass(frozen=True, slots=True)
class PromptMessage:
    """One prompt, to be continued greedily."""

    prompt: list[int]  # tokens of the benchmark's own tokenizer
    most: int  # tokens of the answer
    ends: list[int] = field(default_factory=list)  # tokens that end the text; empty: none
    text: str = ""  # the same prompt as text, special tokens included


@dataclass(frozen=True, slots=True)
class AnswerMessage:
    """Output and timings of a peer; prefill ends with the first token."""

    count: int  # tokens
    timed: int  # tokens that `seconds` covers: those after the first, or after the first round
    seconds: float
    reading: float  # seconds before the first token
    tokens: list[int] | None = None  # None if the peer returns text only
    text: str | None = None
    memory: int | None = None  # peak bytes of the peer, weights included


@dataclass(frozen=True, slots=True)
class LoadedPeer:
    """A loaded peer: its decode function and a description."""

    decode: Callable[[PromptMessage], AnswerMessage]
    weights: str  # description of its weights
    version: str = ""
    close: Callable[[], Any] = lambda: None

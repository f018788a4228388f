"""Passes over the roots of several requests that are launched before the last one was read.

A pass without drafted nodes always commits its roots, so the next pass can be launched while the
tokens of this one are on their way to the host: on the device they are the next roots.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from sapwood.core.array_types import IntArray

if TYPE_CHECKING:
    from sapwood.core.protocols import Session, TargetOutput


@dataclass(slots=True)
class RootBatch:
    """Roots of several sessions, a row each; lists of one length."""

    sessions: "list[Session]" = field(default_factory=list)
    # of the roots; -1 - i is the next token of row i of the pass launched before
    tokens: list[int] = field(default_factory=list)
    temperatures: list[float] = field(default_factory=list)  # 0 takes the best token
    keys: list[int] = field(default_factory=list)  # of the noise of the next token; 0 without any

    def add(self, session: "Session", token: int, temperature: float, key: int) -> None:
        """Add a row."""
        self.sessions.append(session)
        self.tokens.append(token)
        self.temperatures.append(temperature)
        self.keys.append(key)

    def __len__(self) -> int:
        return len(self.sessions)


class LaunchedRoots(Protocol):
    """A launched pass over roots, which are committed already."""

    def next_tokens(self) -> IntArray:
        """Wait for the pass; the next token of each row."""

    def outputs(self) -> "Sequence[TargetOutput]":
        """Hidden states of each row, for drafters; the logits are gone."""

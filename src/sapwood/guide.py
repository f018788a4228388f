"""A grammar along paths: which tokens may follow the output so far and a path of the tree.

A compiled grammar gives the state before its first token; a state gives the mask of the next token and the state
after it. States never change, so each path of a round's tree has its own, made once from its parent's, and what was
tried on one branch cannot be seen on another. A path that the grammar forbids, or that goes on after the end, is under
no mask any more: no such node becomes output, and a law after it needs no meaning, it only has to be one.
"""

import enum
from collections.abc import Sequence
from typing import Protocol

from sapwood.arrays import BoolArray

PIECE = 64  # tokens that are committed at a time: more than a path has


class State(Protocol):
    """A place in a grammar; never changes."""

    @property
    def done(self) -> bool:
        """True where the text is whole and nothing but its end may follow."""

    def allowed(self) -> BoolArray:
        """True for each token that may come next, the ends of text where the grammar may end, [vocab]."""

    def after(self, token: int) -> "State | None":
        """The place after one more token; None where the grammar forbids it."""

    def forced(self) -> int | None:
        """The only token that may come next; None where there is a choice."""


class Rules(Protocol):
    """A compiled grammar, shared by requests."""

    @property
    def ends(self) -> frozenset[int]:
        """Tokens that end the text."""

    def begin(self) -> State:
        """The place before the first token."""


class Fate(enum.Enum):
    """What is left of a path that has no place in the grammar."""

    ENDED = "ended"  # its last token ended the text
    BROKEN = "broken"  # one of its tokens is forbidden, or follows the end


class Guide:
    """The grammar of one request: the state of its output, and of the paths that were asked for since."""

    def __init__(self, rules: Rules) -> None:
        self._ends = rules.ends
        self._places: dict[tuple[int, ...], State | Fate] = {(): rules.begin()}  # of this round's paths

    def commit(self, tokens: Sequence[int]) -> None:
        """Make these tokens part of the output."""
        for start in range(0, len(tokens), PIECE):
            self._places = {(): self.place(tuple(tokens[start : start + PIECE]))}

    def place(self, path: tuple[int, ...]) -> State | Fate:
        """Where the output and this path have led."""
        known = len(path)
        while path[:known] not in self._places:
            known -= 1
        found = self._places[path[:known]]
        for end in range(known, len(path)):
            found = self._step(found, path[end])
            self._places[path[: end + 1]] = found
        return found

    def _step(self, before: State | Fate, token: int) -> State | Fate:
        if isinstance(before, Fate):
            return Fate.BROKEN
        if token in self._ends:
            return Fate.ENDED if before.allowed()[token] else Fate.BROKEN
        return before.after(token) or Fate.BROKEN

    def state(self, path: Sequence[int]) -> State | None:
        """The state after this path; None where the grammar has nothing more to say."""
        found = self.place(tuple(path))
        return None if isinstance(found, Fate) else found

    def lawful(self, path: Sequence[int]) -> bool:
        """True where the path may become output."""
        return self.place(tuple(path)) is not Fate.BROKEN

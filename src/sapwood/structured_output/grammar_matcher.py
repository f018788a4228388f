"""Grammar states along the paths of a tree: the tokens that may follow output and path.

A compiled grammar gives the state before its first token; a state gives the mask of the next token
and the state after it. States are immutable: each path of a round's tree has its own, made once
from its parent's, and branches do not affect each other. After a path that the grammar forbids, or
that goes on after the end, nothing is masked: no such node becomes output, and the distribution
after it needs no meaning, it only has to be one.
"""

import enum
from collections.abc import Sequence
from typing import Protocol

from sapwood.core.array_types import BoolArray

CHUNK = 64  # tokens committed at a time; longer than any path


class MatcherState(Protocol):
    """An immutable state of a grammar."""

    @property
    def done(self) -> bool:
        """True when the text is complete and only its end may follow."""

    def allowed(self) -> BoolArray:
        """Mask of the tokens that may come next, ends of text included, [vocab]."""

    def after(self, token: int) -> "MatcherState | None":
        """The state after one more token; None when the grammar forbids it."""

    def forced(self) -> int | None:
        """The only token that may come next; None when there are several."""


class GrammarRules(Protocol):
    """A compiled grammar, shared by requests."""

    @property
    def ends(self) -> frozenset[int]:
        """Tokens that end the text."""

    def begin(self) -> MatcherState:
        """The state before the first token."""


class PathEnd(enum.Enum):
    """End of a path that has no state in the grammar."""

    ENDED = "ended"  # its last token ended the text
    BROKEN = "broken"  # one of its tokens is forbidden, or follows the end


class GrammarMatcher:
    """The grammar of one request: states of its output and of this round's paths."""

    def __init__(self, rules: GrammarRules) -> None:
        self._ends = rules.ends
        # by path of this round's tree; () is the output so far
        self._states: dict[tuple[int, ...], MatcherState | PathEnd] = {(): rules.begin()}

    def commit(self, tokens: Sequence[int]) -> None:
        """Make these tokens part of the output."""
        for start in range(0, len(tokens), CHUNK):
            self._states = {(): self.path_state(tuple(tokens[start : start + CHUNK]))}

    def path_state(self, path: tuple[int, ...]) -> MatcherState | PathEnd:
        """The state after the output and this path."""
        known = len(path)
        while path[:known] not in self._states:
            known -= 1
        found = self._states[path[:known]]
        for end in range(known, len(path)):
            found = self._step(found, path[end])
            self._states[path[: end + 1]] = found
        return found

    def _step(self, before: MatcherState | PathEnd, token: int) -> MatcherState | PathEnd:
        if isinstance(before, PathEnd):
            return PathEnd.BROKEN
        if token in self._ends:
            return PathEnd.ENDED if before.allowed()[token] else PathEnd.BROKEN
        return before.after(token) or PathEnd.BROKEN

    def state(self, path: Sequence[int]) -> MatcherState | None:
        """The state after this path; None when the path has ended or is forbidden."""
        found = self.path_state(tuple(path))
        return None if isinstance(found, PathEnd) else found

    def allows(self, path: Sequence[int]) -> bool:
        """True when the path may become output."""
        return self.path_state(tuple(path)) is not PathEnd.BROKEN

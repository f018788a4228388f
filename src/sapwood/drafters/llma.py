"""Copy a stretch of a reference as soon as the output has begun to repeat it.

LLMA (arXiv 2304.04487). The references stay as they are: the prompt, or a text the user names. Where the
last few tokens of the output stand in one of them, what followed there is copied, so many tokens at once.
The prompt itself never triggers, and of several places the first is taken, the longest match deciding.
"""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from sapwood.drafters.corpus import open_corpus
from sapwood.drafters.follow import Follow, Guess, trust
from sapwood.drafters.suffixes import DEPTH, Suffixes
from sapwood.part import at_least, between
from sapwood.protocols import Request, Setting
from sapwood.rng import Rng


class Copy(NamedTuple):
    """Where a node stands: the output up to it, and the place of a reference that comes next, if any."""

    output: tuple[int, ...]  # its last tokens
    place: int | None = None
    matched: int = 0  # tokens before the place that agree
    copied: int = 0  # of these, tokens copied since the trigger


@dataclass
class Llma(Follow):
    """Copy from the prompt, or from a text the user names, what followed the output's last tokens there."""

    trigger: int = 1  # tokens of the output that must agree, >= 1
    longest: int = 5  # tokens of the output that are compared, up to 31
    copy: int = 19  # tokens copied at a trigger, >= 1
    references: str = ""  # a file of plain text; empty takes the prompt

    paper: ClassVar[str] = "2304.04487"

    def __post_init__(self) -> None:
        at_least(1, trigger=self.trigger, copy=self.copy)
        between(self.trigger, DEPTH - 1, longest=self.longest)

    def bind(self, setting: Setting) -> None:
        """Read the references, where a file is named."""
        self.named = open_corpus(self.references, setting) if self.references else None

    def reset(self, request: Request) -> None:
        """Read the prompt, where it is the reference."""
        super().reset(request)
        self.prompt_ = len(request.prompt)
        self.reference_ = Suffixes.of(request.prompt) if self.named is None else self.named

    def start(self, rng: Rng) -> Copy:
        """A trigger by the output so far."""
        return self._trigger(tuple(self.text_[self.prompt_ :][-self.longest :]))

    def step(self, place: Copy, token: int) -> Copy:
        """Go on with the copy, or trigger another one after a token that was not copied."""
        output = (*place.output, token)[-self.longest :]
        if place.place is None or self._read(place) != token:
            return self._trigger(output)
        return Copy(output, place.place + 1, place.matched + 1, place.copied + 1)

    def guesses(self, place: Copy) -> list[Guess]:
        """The next token of the copy."""
        token = self._read(place)
        return [] if token is None else [(token, trust(place.matched))]

    def _read(self, at: Copy) -> int | None:
        """The token to be copied; None after the last."""
        if at.place is None or at.place >= len(self.reference_.tokens) or at.copied >= self.copy:
            return None
        return int(self.reference_.tokens[at.place])

    def _trigger(self, output: tuple[int, ...]) -> Copy:
        size, low, high = self.reference_.longest(output, self.longest, self.trigger)
        if not size:
            return Copy(output)
        return Copy(output, int(self.reference_.order[low:high].min()) + size, size)

"""Copies from a reference text once the output has begun to repeat it.

LLMA (arXiv 2304.04487). The reference is the prompt, or a text that the user names. If the last
tokens of the output occur in it, the tokens after that place are copied, a fixed number at once.
Only output tokens trigger a copy. The longest match decides, and of equal ones the first place.
"""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from sapwood.core.part import at_least, between
from sapwood.core.protocols import EngineContext, RequestContext
from sapwood.core.rng import Rng
from sapwood.drafters.lookup.corpus import open_corpus
from sapwood.drafters.lookup.lookup_base import Candidate, LookupBase, trust
from sapwood.drafters.lookup.suffix_array import DEPTH, SuffixArray


class CopyPosition(NamedTuple):
    """The output up to a node, and the next position in a reference, if any."""

    output: tuple[int, ...]  # its last tokens
    place: int | None = None
    matched: int = 0  # tokens before the place that agree
    copied: int = 0  # of these, tokens copied since the trigger


@dataclass
class Llma(LookupBase):
    """Copies what followed the output's last tokens in the prompt or a named text."""

    trigger: int = 1  # last output tokens that must match, >= 1
    longest: int = 5  # most output tokens that are compared, up to 31
    copy: int = 19  # tokens copied after a match, >= 1
    references: str = ""  # path of a plain text file; empty: the prompt

    paper: ClassVar[str] = "2304.04487"

    def __post_init__(self) -> None:
        at_least(1, trigger=self.trigger, copy=self.copy)
        between(self.trigger, DEPTH - 1, longest=self.longest)

    def bind(self, setting: EngineContext) -> None:
        """Read the references, where a file is named."""
        self.named = open_corpus(self.references, setting) if self.references else None

    def reset(self, request: RequestContext) -> None:
        """Read the prompt, where it is the reference."""
        super().reset(request)
        self.prompt_ = len(request.prompt)
        self.reference_ = SuffixArray.of(request.prompt) if self.named is None else self.named

    def start(self, rng: Rng) -> CopyPosition:
        """A trigger by the output so far."""
        return self._trigger(tuple(self.text_[self.prompt_ :][-self.longest :]))

    def step(self, place: CopyPosition, token: int) -> CopyPosition:
        """Go on with the copy, or trigger another one after a token that was not copied."""
        output = (*place.output, token)[-self.longest :]
        if place.place is None or self._read(place) != token:
            return self._trigger(output)
        return CopyPosition(output, place.place + 1, place.matched + 1, place.copied + 1)

    def candidates(self, place: CopyPosition) -> list[Candidate]:
        """The next token of the copy."""
        token = self._read(place)
        return [] if token is None else [(token, trust(place.matched))]

    def _read(self, at: CopyPosition) -> int | None:
        """The token to be copied; None after the last."""
        if at.place is None or at.place >= len(self.reference_.tokens) or at.copied >= self.copy:
            return None
        return int(self.reference_.tokens[at.place])

    def _trigger(self, output: tuple[int, ...]) -> CopyPosition:
        size, low, high = self.reference_.longest(output, self.longest, self.trigger)
        if not size:
            return CopyPosition(output)
        return CopyPosition(output, int(self.reference_.order[low:high].min()) + size, size)

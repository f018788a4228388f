"""Follows the output that the caller expects, wherever the real output returns to it.

OpenAI's "predicted outputs": an edited text is mostly the old one. The prediction is followed from
the place where the output last agreed with it. Where the output departs, a token may have been
replaced, added or left out, so the next places are tried too, with low probability; and as soon as
the last output tokens occur in the prediction, the tokens after them. All lines that are still
possible are siblings in the tree.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from sapwood.core.part import at_least
from sapwood.core.protocols import RequestContext
from sapwood.core.rng import Rng
from sapwood.core.tree import Tree
from sapwood.core.types import Outcome
from sapwood.drafters.lookup.lookup_base import Candidate, LookupBase

LONGEST = 4  # most output tokens that are looked up in the prediction
SCAN = 8  # occurrences of one context that are considered
TRUSTED = 8  # matched tokens assumed at the beginning of the prediction
FADE = 0.3  # factor of the remaining probability from one line to the next

Line = tuple[int, int]  # (place of the next token in the prediction, tokens matched before it)
# lines, the likeliest first, and the last tokens of the output
Place = tuple[tuple[Line, ...], tuple[int, ...]]


class PredictionPosition:
    """Positions of an output in its prediction, the likeliest first."""

    def __init__(self, prediction: Sequence[int], lines: int = 3) -> None:
        self.prediction = tuple(prediction)
        self.most = lines
        # context -> places of the tokens after it
        self.index: dict[tuple[int, ...], list[int]] = {}
        for end in range(1, len(self.prediction) + 1):
            for size in range(1, min(LONGEST, end) + 1):
                self.index.setdefault(self.prediction[end - size : end], []).append(end)

    def start(self) -> tuple[Line, ...]:
        """The lines before the first output token."""
        return ((0, TRUSTED),)

    def step(self, lines: tuple[Line, ...], tail: tuple[int, ...]) -> tuple[Line, ...]:
        """The lines after a token, the last of `tail`."""
        kept = [(place + 1, matched + 1) for place, matched in lines if self.at(place) == tail[-1]]
        if kept and kept[0][1] > LONGEST:
            return tuple(kept[: self.most])
        found = [*kept, *self._anew(lines, tail), *(self._beside(lines) if not kept else ())]
        return tuple({place: (place, matched) for place, matched in reversed(found)}.values())[
            ::-1
        ][: self.most]

    def at(self, place: int) -> int | None:
        """The predicted token at this place."""
        return self.prediction[place] if place < len(self.prediction) else None

    def _anew(self, lines: tuple[Line, ...], tail: tuple[int, ...]) -> Iterator[Line]:
        """Matches of the last tokens in the prediction, the longest, then the next ahead first."""
        last = lines[0][0] if lines else 0
        for size in range(min(LONGEST, len(tail)), 0, -1):
            # ascending: a repetitive prediction has thousands
            places = self.index.get(tail[-size:], [])
            spot = bisect_left(places, last)
            near = [*places[spot : spot + SCAN], *reversed(places[max(spot - SCAN, 0) : spot])]
            yield from ((place, size) for place in near[:SCAN])

    def _beside(self, lines: tuple[Line, ...]) -> Iterator[Line]:
        """Right after a departure: a token was replaced, or one was put in."""
        for place, matched in lines[:1]:
            if matched > LONGEST:
                yield from ((place + 1, 1), (place, 1))


@dataclass
class Prediction(LookupBase):
    """Follow the tokens that the caller expects as output."""

    lines: int = 3  # places of the prediction that are followed at once, >= 1

    paper: ClassVar[str] = "OpenAI, predicted outputs"

    def __post_init__(self) -> None:
        at_least(1, lines=self.lines)

    def reset(self, request: RequestContext) -> None:
        """Take the request's prediction, and walk along it as far as the request has come."""
        super().reset(request)
        self.walk_ = PredictionPosition(request.sampler.sampling.prediction, self.lines)
        self.tail_: tuple[int, ...] = ()
        self.lines_ = self.walk_.start() if self.walk_.prediction else ()
        emitted = request.sampler.emitted
        self._go(self.text_[len(self.text_) - emitted :])

    def observe(self, outcome: Outcome) -> None:
        """Follow the emitted tokens."""
        super().observe(outcome)
        self._go(outcome.tokens)

    def _go(self, tokens: Sequence[int]) -> None:
        for token in tokens if self.walk_.prediction else ():
            self.tail_ = (*self.tail_, token)[-LONGEST:]
            self.lines_ = self.walk_.step(self.lines_, self.tail_)

    def matches_text(self) -> bool:
        """True when the output has followed the prediction for a while, and it goes on."""
        return any(
            matched > LONGEST and self.walk_.at(place) is not None
            for place, matched in self.lines_[:1]
        )

    def likely_path(self, root: int, longest: int) -> Tree:
        """The next tokens of the likeliest line as one path."""
        tree, (place, matched) = Tree(root), self.lines_[0]
        for offset, token in enumerate(self.walk_.prediction[place : place + longest]):
            tree.close(offset)
            tree.add(offset, token, trust(matched + offset), source=self.source)
        return tree

    def start(self, rng: Rng) -> Place:
        """The lines at the end of the output, and its last tokens."""
        return self.lines_, self.tail_

    def step(self, place: Place, token: int) -> Place | None:
        """The same after one more token."""
        if not self.walk_.prediction:
            return None
        lines = place[0]
        tail = (*place[1], token)[-LONGEST:]
        return self.walk_.step(lines, tail), tail

    def candidates(self, place: Place) -> list[Candidate]:
        """The next token of each line."""
        found: dict[int, float] = {}
        left = 1.0
        for spot, matched in place[0]:
            token = self.walk_.at(spot)
            if token is not None and token not in found:
                found[token] = left * trust(matched)
                left = min(left - found[token], left * FADE)
        return list(found.items())


def trust(matched: int) -> float:
    """Probability that a match continues; it rises with the tokens matched."""
    return matched / (matched + 1)


@dataclass(frozen=True, slots=True)
class PredictionUse:
    """Counts of accepted and rejected tokens of a prediction."""

    accepted: int  # tokens of the prediction that the output followed
    rejected: int  # all others


def followed(prediction: Sequence[int], output: Sequence[int]) -> PredictionUse:
    """Count the tokens of a prediction that an output followed; depends on the two texts alone."""
    walk = PredictionPosition(prediction)
    lines = walk.start()
    tail = tuple[int, ...]()
    found = set[int]()
    for token in output:
        found.update(place for place, _ in lines[:1] if walk.at(place) == token)
        tail = (*tail, token)[-LONGEST:]
        lines = walk.step(lines, tail)
    return PredictionUse(len(found), len(walk.prediction) - len(found))

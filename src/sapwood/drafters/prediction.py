"""Follow the answer that the caller expects, wherever the output comes back to it.

OpenAI's "predicted outputs": an edited text is mostly the old one. The prediction is walked from where the output last
agreed with it. Where the output departs, it may have replaced a token, put one in or left one out, so the walk goes on
beside the departure, with little trust; and as soon as the last tokens stand somewhere in the prediction, from there.
The lines that are still possible are siblings in the tree.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from sapwood.drafters.follow import Follow, Guess
from sapwood.part import at_least
from sapwood.protocols import Request
from sapwood.records import Outcome
from sapwood.rng import Rng
from sapwood.tree import Tree

LONGEST = 4  # tokens of the output that are looked up in the prediction
SCAN = 8  # occurrences of one context looked at
TRUSTED = 8  # tokens that the prediction's beginning is taken to have matched
FADE = 0.3  # what is left of the trust for the next best line

Line = tuple[int, int]  # (place of the next token in the prediction, tokens matched before it)
Place = tuple[tuple[Line, ...], tuple[int, ...]]  # lines, the likeliest first, and the last tokens of the output


class Walk:
    """Where an output stands in its prediction: some lines, the likeliest first."""

    def __init__(self, prediction: Sequence[int], lines: int = 3) -> None:
        self.prediction, self.most = tuple(prediction), lines
        self.index: dict[tuple[int, ...], list[int]] = {}  # context -> places of the tokens after it
        for end in range(1, len(self.prediction) + 1):
            for size in range(1, min(LONGEST, end) + 1):
                self.index.setdefault(self.prediction[end - size : end], []).append(end)

    def start(self) -> tuple[Line, ...]:
        """The lines before anything was said."""
        return ((0, TRUSTED),)

    def step(self, lines: tuple[Line, ...], tail: tuple[int, ...]) -> tuple[Line, ...]:
        """The lines after a token, the last of `tail`."""
        kept = [(place + 1, matched + 1) for place, matched in lines if self.at(place) == tail[-1]]
        if kept and kept[0][1] > LONGEST:
            return tuple(kept[: self.most])
        found = [*kept, *self._anew(lines, tail), *(self._beside(lines) if not kept else ())]
        return tuple({place: (place, matched) for place, matched in reversed(found)}.values())[::-1][: self.most]

    def at(self, place: int) -> int | None:
        """The predicted token at this place."""
        return self.prediction[place] if place < len(self.prediction) else None

    def _anew(self, lines: tuple[Line, ...], tail: tuple[int, ...]) -> Iterator[Line]:
        """Where the last tokens stand in the prediction, the longest match first, of equals the next one ahead."""
        last = lines[0][0] if lines else 0
        for size in range(min(LONGEST, len(tail)), 0, -1):
            places = self.index.get(tail[-size:], [])  # ascending: a repetitive prediction has thousands
            spot = bisect_left(places, last)
            near = [*places[spot : spot + SCAN], *reversed(places[max(spot - SCAN, 0) : spot])]
            yield from ((place, size) for place in near[:SCAN])

    def _beside(self, lines: tuple[Line, ...]) -> Iterator[Line]:
        """Right after a departure: a token was replaced, or one was put in."""
        for place, matched in lines[:1]:
            if matched > LONGEST:
                yield from ((place + 1, 1), (place, 1))


@dataclass
class Prediction(Follow):
    """Follow the tokens that the caller expects as the answer."""

    lines: int = 3  # places of the prediction that are followed at once

    paper: ClassVar[str] = "OpenAI, predicted outputs"

    def __post_init__(self) -> None:
        at_least(1, lines=self.lines)

    def reset(self, request: Request) -> None:
        """Take the request's prediction, and walk along it as far as the request has come."""
        super().reset(request)
        self.walk_ = Walk(request.sampler.sampling.prediction, self.lines)
        self.tail_: tuple[int, ...] = ()
        self.lines_ = self.walk_.start() if self.walk_.prediction else ()
        emitted = request.sampler.emitted
        self._go(self.text_[len(self.text_) - emitted :])

    def observe(self, outcome: Outcome) -> None:
        """Walk along what was said."""
        super().observe(outcome)
        self._go(outcome.tokens)

    def _go(self, tokens: Sequence[int]) -> None:
        for token in tokens if self.walk_.prediction else ():
            self.tail_ = (*self.tail_, token)[-LONGEST:]
            self.lines_ = self.walk_.step(self.lines_, self.tail_)

    @property
    def follows(self) -> bool:
        """True where the output has gone along with the prediction for a while, and there is more of it."""
        return any(matched > LONGEST and self.walk_.at(place) is not None for place, matched in self.lines_[:1])

    def recite(self, root: int, longest: int) -> Tree:
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
        lines, tail = place[0], (*place[1], token)[-LONGEST:]
        return self.walk_.step(lines, tail), tail

    def guesses(self, place: Place) -> list[Guess]:
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
    """Chance of a line to go on: one that has just been found is a guess, one that was followed for a while is not."""
    return matched / (matched + 1)


@dataclass(frozen=True, slots=True)
class Followed:
    """How much of a prediction became output."""

    accepted: int  # tokens of the prediction that the output said where it expected them
    rejected: int  # all others


def followed(prediction: Sequence[int], output: Sequence[int]) -> Followed:
    """Count the tokens of a prediction that an output followed; depends on the two texts alone."""
    walk = Walk(prediction)
    lines, tail, said = walk.start(), tuple[int, ...](), set[int]()
    for token in output:
        said.update(place for place, _ in lines[:1] if walk.at(place) == token)
        tail = (*tail, token)[-LONGEST:]
        lines = walk.step(lines, tail)
    return Followed(len(said), len(walk.prediction) - len(said))

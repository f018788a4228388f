"""Guess the commonest continuation of the longest context that is known, in a table that learns as it goes.

ANPD (arXiv 2404.08698). The table counts what followed every context of up to n - 1 tokens, in the prompt
and then in each round's output. A node asks its longest context first and the ever shorter ones only
where that one is new; in a tree, shorter contexts fill up the siblings.
"""

from dataclasses import dataclass
from typing import ClassVar

from sapwood.drafters.counts import Counts
from sapwood.drafters.follow import Follow, Guess, trust
from sapwood.part import between
from sapwood.protocols import Request
from sapwood.records import Outcome
from sapwood.rng import Rng


@dataclass
class Anpd(Follow):
    """The commonest continuation of the longest known context, from n-grams counted in this text."""

    n: int = 5  # tokens of the longest n-gram, 2 to 32

    paper: ClassVar[str] = "2404.08698"

    def __post_init__(self) -> None:
        between(2, 32, n=self.n)

    def reset(self, request: Request) -> None:
        """Count the prompt."""
        super().reset(request)
        self.counts_ = Counts(self.n - 1)
        self.counts_.learn([], self.text_)

    def observe(self, outcome: Outcome) -> None:
        """Count what was emitted."""
        self.counts_.learn(self.text_, outcome.tokens)
        super().observe(outcome)

    def start(self, rng: Rng) -> tuple[int, ...]:
        """The last tokens of the text."""
        return tuple(self.text_[-self.n + 1 :])

    def step(self, place: tuple[int, ...], token: int) -> tuple[int, ...]:
        """The last tokens with one more."""
        return (*place, token)[-self.n + 1 :]

    def guesses(self, place: tuple[int, ...]) -> list[Guess]:
        """Continuations of the longest context by count, then those of shorter ones."""
        return spread(self.counts_, place)


def spread(counts: Counts, context: tuple[int, ...]) -> list[Guess]:
    """Continuations of a context and of its ever shorter ends; each has its part of what the longer ones left."""
    found: dict[int, float] = {}
    left = 1.0
    for size in range(len(context), 0, -1):
        level = counts.after(context[len(context) - size :])
        for token, share in level:
            found[token] = found.get(token, 0.0) + left * trust(size) * share
        left *= 1.0 - trust(size) if level else 1.0
    return list(found.items())

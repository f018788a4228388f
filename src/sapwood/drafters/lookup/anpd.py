"""Drafts the commonest continuation of the longest known context, by adaptive n-gram counts.

ANPD (arXiv 2404.08698). The table counts what followed every context of up to n - 1 tokens, in the
prompt and then in each round's output. A node is looked up by its longest context, and by shorter
ones if that one is new; in a tree, shorter contexts add siblings.
"""

from dataclasses import dataclass
from typing import ClassVar

from sapwood.core.part import between
from sapwood.core.protocols import RequestContext
from sapwood.core.rng import Rng
from sapwood.core.types import Outcome
from sapwood.drafters.lookup.lookup_base import Candidate, LookupBase, trust
from sapwood.drafters.lookup.ngram_counts import NgramCounts


@dataclass
class Anpd(LookupBase):
    """The commonest continuation of the longest known context, by n-grams of this text."""

    n: int = 5  # tokens of the longest n-gram, 2 to 32

    paper: ClassVar[str] = "2404.08698"

    def __post_init__(self) -> None:
        between(2, 32, n=self.n)

    def reset(self, request: RequestContext) -> None:
        """Count the prompt."""
        super().reset(request)
        self.counts_ = NgramCounts(self.n - 1)
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

    def candidates(self, place: tuple[int, ...]) -> list[Candidate]:
        """Continuations of the longest context by count, then those of shorter ones."""
        return spread(self.counts_, place)


def spread(counts: NgramCounts, context: tuple[int, ...]) -> list[Candidate]:
    """Continuations of a context and its shorter suffixes, which share the remaining mass."""
    found: dict[int, float] = {}
    left = 1.0
    for size in range(len(context), 0, -1):
        level = counts.after(context[len(context) - size :])
        for token, share in level:
            found[token] = found.get(token, 0.0) + left * trust(size) * share
        left *= 1.0 - trust(size) if level else 1.0
    return list(found.items())

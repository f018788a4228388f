"""Counts of tokens after short contexts."""

from collections.abc import Sequence
from itertools import islice

from sapwood.drafters.lookup.lookup_base import Candidate


class NgramCounts:
    """Counts of n-grams of all lengths up to a longest; when full the oldest half is dropped."""

    def __init__(self, longest: int, most: int | None = None) -> None:
        # tokens of a context; contexts kept
        self.longest = longest
        self.most = most
        # context -> counts, the most recent token last
        self.table: dict[tuple[int, ...], dict[int, int]] = {}

    def learn(self, before: Sequence[int], tokens: Sequence[int]) -> None:
        """Count each token after the contexts that end before it; `before` is not counted again."""
        text = [*before[-self.longest :], *tokens]
        for end in range(len(text) - len(tokens), len(text)):
            for size in range(1, min(self.longest, end) + 1):
                counts = self.table.setdefault(tuple(text[end - size : end]), {})
                counts[text[end]] = counts.pop(text[end], 0) + 1
        if self.most is not None and len(self.table) > self.most:
            for context in list(islice(self.table, len(self.table) - self.most // 2)):
                del self.table[context]

    def after(self, context: tuple[int, ...]) -> list[Candidate]:
        """Continuations of exactly this context with their shares, best and most recent first."""
        counts = self.table.get(context)
        if not counts:
            return []
        total = sum(counts.values())
        ranked = sorted(counts.items(), key=lambda item: item[1])[::-1]
        return [(token, count / total) for token, count in ranked]

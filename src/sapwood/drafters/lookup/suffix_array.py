"""A suffix array: all positions of a text, sorted by the tokens that begin there.

Manber and Myers 1990, by doubling: positions are ranked by their first token, then by two, four,
and so on. Ranking stops at DEPTH tokens, so that its cost does not depend on repetitions in the
text; positions that agree so far stay in the order of the text. No lookup is longer than DEPTH.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sapwood.core.array_types import IntArray

DEPTH = 32  # tokens by which positions are sorted


@dataclass(frozen=True)
class SuffixArray:
    """A text and the sorted order of its positions."""

    tokens: IntArray  # [n]; negative ones separate texts and are never found
    order: IntArray  # [n], positions

    @classmethod
    def of(cls, tokens: Sequence[int] | IntArray) -> "SuffixArray":
        """Sort the places of a text."""
        text = np.asarray(tokens, np.int64)
        if not len(text):
            return cls(text, text)
        rank = np.unique(text, return_inverse=True)[1] + 1  # 0 stands for the end of the text
        size = 1
        while size < DEPTH and rank.max() < len(text):
            later = np.concatenate([rank[size:], np.zeros(min(size, len(rank)), np.int64)])[
                : len(rank)
            ]
            rank = np.unique(rank * (len(text) + 1) + later, return_inverse=True)[1] + 1
            size *= 2
        return cls(text, np.argsort(rank, kind="stable"))

    def find(self, context: Sequence[int]) -> tuple[int, int]:
        """Positions of this context, of at most DEPTH tokens, as a range of the order."""
        wanted = list(context)
        low = self._bisect(wanted, after=False)
        return low, self._bisect(wanted, after=True, low=low)

    def longest(self, text: Sequence[int], most: int, least: int = 1) -> tuple[int, int, int]:
        """The longest suffix of a text, of `least` to `most` tokens, with a continuation here.

        An end that goes on has shorter ends that do, so its length is found by bisection; 0 tokens
        is no match.
        """
        best = (0, 0, 0)
        low = least
        high = min(most, len(text), DEPTH - 1)
        while low <= high:
            size = (low + high) // 2
            first, stop = self.find(text[len(text) - size :])
            if first < stop and self._goes_on(int(self.order[stop - 1]) + size):
                best = (size, first, stop)
                low = size + 1
            else:
                high = size - 1
        return best

    def _goes_on(self, place: int) -> bool:
        """True if a token follows; the last position has the largest one, so it is enough."""
        return place < len(self.tokens) and bool(self.tokens[place] >= 0)

    def _bisect(self, wanted: list[int], *, after: bool, low: int = 0) -> int:
        """The first index of the order whose place reads as, or `after`, what is wanted."""
        high = len(self.order)
        while low < high:
            middle = (low + high) // 2
            place = int(self.order[middle])
            read = self.tokens[place : place + len(wanted)].tolist()
            if read < wanted or (after and read == wanted):
                low = middle + 1
            else:
                high = middle
        return low

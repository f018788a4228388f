"""A suffix array: every place of a text, in the order of what is written there.

Manber and Myers 1990, by doubling: places are ranked by their first token, then by two, four, and so
on. Ranking stops at DEPTH tokens, so that its cost does not depend on how often a text repeats
itself; places that agree so far stay in the order of the text. Nothing that is looked up is longer.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sapwood.arrays import IntArray

DEPTH = 32  # tokens by which places are told apart


@dataclass(frozen=True)
class Suffixes:
    """A text and the order of its places."""

    tokens: IntArray  # [n]; what is negative separates texts and is never found
    order: IntArray  # [n], places

    @classmethod
    def of(cls, tokens: Sequence[int] | IntArray) -> "Suffixes":
        """Sort the places of a text."""
        text = np.asarray(tokens, np.int64)
        if not len(text):
            return cls(text, text)
        rank = np.unique(text, return_inverse=True)[1] + 1  # 0 stands for the end of the text
        size = 1
        while size < DEPTH and rank.max() < len(text):
            later = np.concatenate([rank[size:], np.zeros(min(size, len(rank)), np.int64)])[: len(rank)]
            rank = np.unique(rank * (len(text) + 1) + later, return_inverse=True)[1] + 1
            size *= 2
        return cls(text, np.argsort(rank, kind="stable"))

    def find(self, context: Sequence[int]) -> tuple[int, int]:
        """Places where this context, of at most DEPTH tokens, is written, as a range of the order."""
        wanted = list(context)
        low = self._bisect(wanted, after=False)
        return low, self._bisect(wanted, after=True, low=low)

    def longest(self, text: Sequence[int], most: int, least: int = 1) -> tuple[int, int, int]:
        """The longest end of a text, of `least` to `most` tokens, that goes on here: (tokens, range of the order).

        An end that goes on has shorter ends that do, so its length is found by bisection; 0 tokens is no match.
        """
        best, low, high = (0, 0, 0), least, min(most, len(text), DEPTH - 1)
        while low <= high:
            size = (low + high) // 2
            first, stop = self.find(text[len(text) - size :])
            if first < stop and self._goes_on(int(self.order[stop - 1]) + size):
                best, low = (size, first, stop), size + 1
            else:
                high = size - 1
        return best

    def _goes_on(self, place: int) -> bool:
        """True where a token stands; in order the last place has the largest next token, so asking it is enough."""
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

"""Look the last tokens up in a datastore and lay out what followed there as a tree, the commonest first.

REST (arXiv 2311.08252). The longest end of the text that the datastore holds decides. A node of the tree is the
hits that go on as its path does, so its reach is its share of them all, and the best nodes by reach are the
paper's, those of the commonest prefixes. The authors' code cuts a long list of hits at its front, which in a
sorted list keeps low token ids alone; here hits are thinned out evenly. The datastore is a text file the user
names, sorted once and kept on disk; where none is named, the prompt and earlier outputs are looked up.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from sapwood.arrays import IntArray
from sapwood.drafters.corpus import open_corpus
from sapwood.drafters.follow import Follow, Guess, trust
from sapwood.drafters.suffixes import DEPTH, Suffixes
from sapwood.part import at_least, between
from sapwood.protocols import Request, Setting
from sapwood.rng import Rng

BETWEEN = -1  # stands between two outputs: no token, so nothing matches or goes on across it

Place = tuple[Suffixes, IntArray, int, int]  # the store, places that come next, tokens that agree, of these drafted


class Outputs:
    """Earlier outputs, the newest so many tokens of them, as a store."""

    def __init__(self, most: int) -> None:
        self.most, self.size = most, 0
        self.kept: deque[list[int]] = deque()
        self.store = Suffixes.of([])

    def learn(self, output: Sequence[int]) -> None:
        """Keep one output, and forget the oldest that no longer fit."""
        output = list(output)[-self.most :] if self.most else []
        self.kept.append(output)
        self.size += len(output)
        while self.size > self.most:
            self.size -= len(self.kept.popleft())
        self.store = Suffixes.of([token for one in self.kept for token in (*one, BETWEEN)])


@dataclass
class Rest(Follow):
    """What followed the text's last tokens in a datastore, by share of the hits; without one, in earlier outputs."""

    corpus: str = ""  # a file of plain text; empty looks up earlier outputs and the prompt
    longest: int = 16  # tokens of the end of the text that are looked up, up to 31
    shortest: int = 2  # tokens that must agree, >= 1
    ahead: int = 10  # tokens read after a hit, >= 1
    hits: int = 5000  # places looked at, >= 1; of more an even selection
    doubt: bool = False  # True lowers chances after short matches, for trees that are shared with other drafters
    memory: int = 20_000  # most tokens of earlier outputs kept where no file is named

    paper: ClassVar[str] = "2311.08252"

    def __post_init__(self) -> None:
        at_least(1, shortest=self.shortest, ahead=self.ahead, hits=self.hits)
        at_least(0, memory=self.memory)
        between(self.shortest, DEPTH - 1, longest=self.longest)

    def bind(self, setting: Setting) -> None:
        """Open the datastore, or begin an empty one, shared by all requests."""
        self.named = open_corpus(self.corpus, setting) if self.corpus else None
        self.earlier = Outputs(self.memory)

    def reset(self, request: Request) -> None:
        """Sort the prompt, where no datastore is named."""
        super().reset(request)
        self.prompt_ = len(self.text_)
        self.stores_ = [self.named] if self.named else [Suffixes.of(self.text_), self.earlier.store]

    def close(self) -> None:
        """Remember the output, where no datastore is named."""
        super().close()
        if self.named is None:
            self.earlier.learn(self.text_[max(self.prompt_ - self.shortest, 0) :])

    def start(self, rng: Rng) -> Place | None:
        """Hits of the longest end of the text; the first store wins a tie."""
        tail = self.text_[-self.longest :]
        found = [(store, *store.longest(tail, self.longest, self.shortest)) for store in self.stores_]
        store, size, low, high = max(found, key=lambda one: one[1])
        if not size:
            return None
        low += int(store.order[low]) + size == len(store.tokens)  # a store's own end is first in order, and no hit
        return store, store.order[low : high : -(-(high - low) // self.hits)] + size, size, 0

    def step(self, place: Place, token: int) -> Place | None:
        """The hits that go on with this token."""
        store, hits, matched, drafted = place
        going = hits[hits < len(store.tokens)]
        hits = going[store.tokens[going] == token] + 1
        return (store, hits, matched + 1, drafted + 1) if len(hits) else None

    def guesses(self, place: Place) -> list[Guess]:
        """Next tokens by count, the lower id first among equals."""
        store, hits, matched, drafted = place
        if drafted >= self.ahead:
            return []
        tokens, counts = np.unique(store.tokens[hits[hits < len(store.tokens)]], return_counts=True)
        order = np.argsort(-counts, kind="stable")
        faith = (trust(matched) if self.doubt else 1.0) / len(hits)
        return [(int(tokens[at]), float(counts[at]) * faith) for at in order if tokens[at] != BETWEEN]

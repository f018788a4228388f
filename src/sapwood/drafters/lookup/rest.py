"""Drafts continuations of the last tokens found in a datastore, the commonest first.

REST (arXiv 2311.08252). The longest suffix of the text that the datastore holds is looked up. A
node of the tree stands for the hits that continue along its path, so its reach is its share of all
hits, and the best nodes by reach are the paper's commonest prefixes. The authors' code keeps the
first of a long sorted list of hits, and so only low token ids; here an even selection is kept. The
datastore is a text file that the user names, sorted once and kept on disk; without one, the prompt
and earlier outputs are looked up.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from sapwood.core.array_types import IntArray
from sapwood.core.part import at_least, between
from sapwood.core.protocols import EngineContext, RequestContext
from sapwood.core.rng import Rng
from sapwood.drafters.lookup.corpus import open_corpus
from sapwood.drafters.lookup.lookup_base import Candidate, LookupBase, trust
from sapwood.drafters.lookup.suffix_array import DEPTH, SuffixArray

BETWEEN = -1  # stands between two outputs: no token, so nothing matches or goes on across it

# the store, places that come next, tokens that agree, of these drafted
Place = tuple[SuffixArray, IntArray, int, int]


class RecentOutputs:
    """Earlier outputs, the newest so many tokens of them, as a store."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.size = 0
        self.kept: deque[list[int]] = deque()
        self.store = SuffixArray.of([])

    def learn(self, output: Sequence[int]) -> None:
        """Keep one output, and forget the oldest that no longer fit."""
        output = list(output)[-self.most :] if self.most else []
        self.kept.append(output)
        self.size += len(output)
        while self.size > self.most:
            self.size -= len(self.kept.popleft())
        self.store = SuffixArray.of([token for one in self.kept for token in (*one, BETWEEN)])


@dataclass
class Rest(LookupBase):
    """Continuations of the last tokens in a datastore or in earlier outputs, by share of hits."""

    corpus: str = ""  # path of a plain text file; empty: earlier outputs and the prompt
    longest: int = 16  # most last tokens that are looked up, up to 31
    shortest: int = 2  # least tokens of a match, >= 1
    ahead: int = 10  # tokens copied after a match, >= 1
    hits: int = 5000  # most matches that are used, >= 1; of more an even selection
    # lower probabilities after short matches, for trees shared with other drafters
    doubt: bool = False
    memory: int = 20_000  # most tokens of earlier outputs, without a corpus

    paper: ClassVar[str] = "2311.08252"

    def __post_init__(self) -> None:
        at_least(1, shortest=self.shortest, ahead=self.ahead, hits=self.hits)
        at_least(0, memory=self.memory)
        between(self.shortest, DEPTH - 1, longest=self.longest)

    def bind(self, setting: EngineContext) -> None:
        """Open the datastore, or begin an empty one, shared by all requests."""
        self.named = open_corpus(self.corpus, setting) if self.corpus else None
        self.earlier = RecentOutputs(self.memory)

    def reset(self, request: RequestContext) -> None:
        """Sort the prompt, where no datastore is named."""
        super().reset(request)
        self.prompt_ = len(self.text_)
        self.stores_ = (
            [self.named] if self.named else [SuffixArray.of(self.text_), self.earlier.store]
        )

    def close(self) -> None:
        """Remember the output, where no datastore is named."""
        super().close()
        if self.named is None:
            self.earlier.learn(self.text_[max(self.prompt_ - self.shortest, 0) :])

    def start(self, rng: Rng) -> Place | None:
        """Hits of the longest end of the text; the first store wins a tie."""
        tail = self.text_[-self.longest :]
        found = [
            (store, *store.longest(tail, self.longest, self.shortest)) for store in self.stores_
        ]
        store, size, low, high = max(found, key=lambda one: one[1])
        if not size:
            return None
        # a store's own end is first in order, and no hit
        low += int(store.order[low]) + size == len(store.tokens)
        return store, store.order[low : high : -(-(high - low) // self.hits)] + size, size, 0

    def step(self, place: Place, token: int) -> Place | None:
        """The hits that go on with this token."""
        store, hits, matched, drafted = place
        going = hits[hits < len(store.tokens)]
        hits = going[store.tokens[going] == token] + 1
        return (store, hits, matched + 1, drafted + 1) if len(hits) else None

    def candidates(self, place: Place) -> list[Candidate]:
        """Next tokens by count, the lower id first among equals."""
        store, hits, matched, drafted = place
        if drafted >= self.ahead:
            return []
        tokens, counts = np.unique(store.tokens[hits[hits < len(store.tokens)]], return_counts=True)
        order = np.argsort(-counts, kind="stable")
        faith = (trust(matched) if self.doubt else 1.0) / len(hits)
        return [
            (int(tokens[at]), float(counts[at]) * faith) for at in order if tokens[at] != BETWEEN
        ]

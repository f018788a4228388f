"""Continue one match of the text's end: the one whose draft has the best score.

SuffixDecoding (arXiv 2411.04975) as ArcticInference runs it. Every end of the text that occurred
before is a match, in the text itself or in earlier outputs. After a match of m tokens at most
`factor` * m + `offset` tokens are drafted: the most likely nodes, or the most likely path, where a
token's probability is its share of the counts after the same context, times its parent's, and
at least `floor`. The score of a draft is the sum of these probabilities, its expected length. The
best score wins; of equal ones the longer match, and the text before earlier outputs. A tree never
scores less than a path of the same size, so which of them is drafted is an option. Matches are not
blended, as they are in the drafter `suffix`.

A suffix automaton stands in for the suffix trees: it counts the same strings. Earlier outputs are
forgotten by the half of a bounded memory, not one by one, and the present output is counted in the
text alone.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import ClassVar

from sapwood.core.part import at_least, between
from sapwood.core.protocols import EngineContext, RequestContext
from sapwood.core.rng import Rng
from sapwood.core.tree import ROOT, Tree
from sapwood.core.types import Outcome
from sapwood.drafters.lookup.planned_base import PlannedBase
from sapwood.drafters.lookup.suffix import OutputHistory
from sapwood.drafters.lookup.suffix_automaton import START, Match, SuffixAutomaton

# states of one context in the automata that hold it; their counts are added
Place = list[tuple[SuffixAutomaton, int]]
ROUNDING = 1e-6  # keeps 0.1 * 10 from being 0 tokens


@dataclass
class SuffixDecoding(PlannedBase):
    """Continue the match of best score in the text or in earlier outputs, as a tree or a path."""

    tree: bool = True  # draft the likeliest nodes after a match; False: the likeliest path
    factor: float = 1.0  # most tokens drafted per token of the match (max_spec_factor)
    offset: float = 0.0  # tokens drafted beyond these, may be negative (max_spec_offset)
    floor: float = 0.1  # least probability of a node, given the match (min_token_prob)
    depth: int = 64  # most tokens of a match and its draft together, >= 2
    # most tokens of earlier outputs kept, the newest, at about 400 bytes each
    memory: int = 100_000

    paper: ClassVar[str] = "2411.04975"

    def __post_init__(self) -> None:
        between(0, 100, factor=self.factor)
        between(-100, 100, offset=self.offset)
        between(0, 1, floor=self.floor)
        at_least(2, depth=self.depth)
        at_least(0, memory=self.memory)

    def bind(self, setting: EngineContext) -> None:
        """Begin an empty memory, shared by all requests."""
        self.earlier = OutputHistory(self.memory)

    def reset(self, request: RequestContext) -> None:
        """Index the prompt and match its end in earlier outputs."""
        super().reset(request)
        self.begun_ = len(self.text_)
        self.local_ = SuffixAutomaton()
        self.local_.learn(self.text_)
        self.past_ = [book for book in (self.earlier.young, self.earlier.old) if book.size]
        self.ends_: list[Match] = [(START, 0) for _ in self.past_]
        self._follow(self.text_[-self.depth :])

    def observe(self, outcome: Outcome) -> None:
        """Index what was emitted."""
        super().observe(outcome)
        self.local_.extend(outcome.tokens)
        self._follow(outcome.tokens)

    def close(self) -> None:
        """Remember the output."""
        super().close()
        self.earlier.learn(self.text_[self.begun_ :])

    def _follow(self, tokens: Sequence[int]) -> None:
        """Keep the matches of the text's end in earlier outputs up to date."""
        for token in tokens:
            self.ends_ = [
                book.advance(match, token)
                for book, match in zip(self.past_, self.ends_, strict=True)
            ]

    def plan(self, rng: Rng) -> Tree:
        """The best draft of the text, or of earlier outputs if its score is higher."""
        groups = [[(self.local_, self.local_.match())], [*zip(self.past_, self.ends_, strict=True)]]
        drafts = [self._best(group) for group in groups]
        return max(drafts, key=lambda draft: draft[0])[1]

    def _best(self, group: list[tuple[SuffixAutomaton, Match]]) -> tuple[float, Tree]:
        """Score and draft of the best match in these automata together."""
        best = 0.0, Tree(self.text_[-1])
        for shortest, longest, place in contexts(group):
            most = max(
                map(self._most, range(shortest, min(longest, self.depth - 1) + 1)), default=0
            )
            draft = self._draft(place, most)
            if draft[0] >= best[0]:
                best = draft
        return best

    def _most(self, matched: int) -> int:
        """Most tokens drafted after a match of so many."""
        return min(int(self.factor * matched + self.offset + ROUNDING), self.depth - matched)

    def _draft(self, place: Place, most: int) -> tuple[float, Tree]:
        """The likeliest tokens after a context and their summed probability."""
        draft = Tree(self.text_[-1])
        score = 0.0
        order = count()  # of equal ones the first found comes first
        # minus the probability, order, parent, token, share of the parent's, place
        heap: list[tuple[float, int, int, int, float, Place]] = []

        def push(parent: int, prob: float, at: Place) -> None:
            for token, share, after in self._continuations(at):
                if prob * share >= self.floor:
                    heapq.heappush(heap, (-prob * share, next(order), parent, token, share, after))

        push(ROOT, 1.0, place)
        while heap and len(draft) <= most:
            minus, _, parent, token, share, after = heapq.heappop(heap)
            score -= minus
            push(draft.add(parent, token, share), -minus, after)
        return score, draft

    def _continuations(self, place: Place) -> list[tuple[int, float, Place]]:
        """Tokens that followed a context, each with its share of the counts and its own place."""
        found: dict[int, Place] = {}
        for book, state in place:
            edges = book.edges[state]
            for token in book.leaders.get(state) or edges:
                found.setdefault(token, []).append((book, edges[token]))
        sums = {token: occurrences(after) for token, after in found.items()}
        # the end of a text is an occurrence that nothing followed
        total = max(occurrences(place), sum(sums.values()))
        tokens = sorted(sums, key=lambda token: -sums[token])[: None if self.tree else 1]
        return [(token, sums[token] / total, found[token]) for token in tokens]


def occurrences(place: Place) -> int:
    """Number of times that a context occurred."""
    return sum(book.counts[state] for book, state in place)


def contexts(group: list[tuple[SuffixAutomaton, Match]]) -> list[tuple[int, int, Place]]:
    """Ranges of match lengths, (shortest, longest, place), shortest first.

    All ends of the text with a length in a range occurred at the same places.
    """
    ends = [(book, chain_of(book, match)) for book, match in group]
    bounds = sorted({matched for _, chain in ends for matched, _ in chain})
    found = []
    for shorter, longest in zip([0, *bounds], bounds, strict=False):
        place = []
        for book, chain in ends:
            # the shortest state of the chain that still holds this length
            state = next((state for matched, state in chain if matched >= longest), None)
            if state is not None:
                place.append((book, state))
        found.append((shorter + 1, longest, place))
    return found


def chain_of(book: SuffixAutomaton, match: Match) -> list[tuple[int, int]]:
    """(tokens matched, state) of a match and its ever shorter ends, shortest first."""
    state, matched = match
    chain = []
    while state != START:
        chain.append((matched, state))
        state = book.links[state]
        matched = book.lengths[state]
    return chain[::-1]

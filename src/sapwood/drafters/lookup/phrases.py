"""Continues with phrases that the target emitted or would have emitted after the same token.

The phrase pool of Ouroboros (arXiv 2402.13720). After a rejected draft token the pass has still
outputs at every later position, and these in a row are often the coming text, a little shifted.
They are split into phrases and stored under the token before them, newest first, for this request
and the next ones; so is the text itself. (The public code also fills the pool from a lookahead
window of the draft model.)
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from sapwood.core.part import at_least
from sapwood.core.protocols import EngineContext, RequestContext
from sapwood.core.rng import Rng
from sapwood.core.types import Outcome
from sapwood.drafters.lookup.lookup_base import Candidate, LookupBase

# share of the remaining probability that the next phrase gets; policies only compare
TRUST = 0.5

Phrase = tuple[int, ...]


class PhrasePool:
    """Phrases by the token before them, the most recent ones."""

    def __init__(self, most: int) -> None:
        self.most = most  # phrases kept per token
        self._phrases: dict[int, dict[Phrase, None]] = {}  # oldest first

    def add(self, before: int, phrase: Phrase) -> None:
        """Keep one phrase."""
        kept = self._phrases.setdefault(before, {})
        for old in [old for old in kept if old == phrase[: len(old)]]:
            del kept[old]
        kept[phrase] = None
        if len(kept) > self.most:
            del kept[next(iter(kept))]

    def after(self, token: int) -> list[Phrase]:
        """Phrases after this token, newest first."""
        return list(reversed(self._phrases.get(token, {})))

    def learn(self, tokens: Sequence[int], size: int) -> None:
        """Keep every phrase of up to `size` tokens that follows a token of this row."""
        for start in range(len(tokens) - 1):
            self.add(tokens[start], tuple(tokens[start + 1 : start + 1 + size]))


@dataclass
class Phrases(LookupBase):
    """Continue with phrases of the target's outputs at rejected positions, and of the text."""

    count: int = 15  # phrases stored for each token before them, >= 1
    size: int = 4  # most tokens of a phrase, >= 1

    paper: ClassVar[str] = "2402.13720"
    reads_scores = True

    def __post_init__(self) -> None:
        at_least(1, count=self.count, size=self.size)

    def bind(self, setting: EngineContext) -> None:
        """Begin an empty pool, shared by all requests."""
        self.pool = PhrasePool(self.count)

    def reset(self, request: RequestContext) -> None:
        """Read the prompt."""
        super().reset(request)
        self.pool.learn(self.text_, self.size)

    def start(self, rng: Rng) -> list[Phrase]:
        """The phrases after the root."""
        return self.pool.after(self.text_[-1])

    def step(self, place: list[Phrase], token: int) -> list[Phrase]:
        """The rest of the phrases that go on with this token, then those that begin with it."""
        rest = [phrase[1:] for phrase in place if phrase[0] == token and len(phrase) > 1]
        return rest + self.pool.after(token)

    def candidates(self, place: list[Phrase]) -> list[Candidate]:
        """The next token of each phrase."""
        tokens = dict.fromkeys(phrase[0] for phrase in place)
        return [(token, TRUST ** (rank + 1)) for rank, token in enumerate(tokens)]

    def observe(self, outcome: Outcome) -> None:
        """Store the outputs after each rejection, and the text."""
        for row in discarded(outcome):
            self.pool.learn(row, self.size)
        super().observe(outcome)
        self.pool.learn(self.text_[-self.size - len(outcome.tokens) :], self.size)


def discarded(outcome: Outcome) -> Iterator[list[int]]:
    """The target's tokens along each rejected branch, from the one that replaces it on."""
    tree = outcome.tree
    kept = set(outcome.verdict.path)
    if len(tree) == len(kept):
        return
    answers = outcome.scores.argmax()
    inner = set(tree.parents.tolist())
    for leaf in range(1, len(tree)):
        if leaf not in inner and leaf not in kept:
            path = tree.path(leaf)
            fork = max(place for place, node in enumerate(path) if node in kept)
            yield answers[path[fork:]].tolist()

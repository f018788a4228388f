"""Continue with phrases the target has said, or would have said, after the same token.

The phrase pool of Ouroboros (arXiv 2402.13720). Where a draft is refused, the target has still answered at
every later position; those answers, read in a row, are often the coming text a little out of place. They
are cut into phrases and kept under their first token, the newest first, for this request and the next ones;
so is the text itself. (The public code fills the pool from a look-ahead window of the draft model as well.)
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from sapwood.drafters.follow import Follow, Guess
from sapwood.part import at_least
from sapwood.protocols import Request, Setting
from sapwood.records import Outcome
from sapwood.rng import Rng

TRUST = 0.5  # share of what newer phrases left that the next one is given; policies only compare

Phrase = tuple[int, ...]


class Pool:
    """Phrases by the token before them; one that is said again, or on, is the newest, the oldest is forgotten."""

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
class Phrases(Follow):
    """Continue with phrases from the target's discarded answers and from the text."""

    count: int = 15  # phrases kept per first token, >= 1
    size: int = 4  # tokens of a phrase after the first, >= 1

    paper: ClassVar[str] = "2402.13720"

    def __post_init__(self) -> None:
        at_least(1, count=self.count, size=self.size)

    def bind(self, setting: Setting) -> None:
        """Begin an empty pool, shared by all requests."""
        self.pool = Pool(self.count)

    def reset(self, request: Request) -> None:
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

    def guesses(self, place: list[Phrase]) -> list[Guess]:
        """The next token of each phrase."""
        tokens = dict.fromkeys(phrase[0] for phrase in place)
        return [(token, TRUST ** (rank + 1)) for rank, token in enumerate(tokens)]

    def observe(self, outcome: Outcome) -> None:
        """Keep the answers after each refusal, and the text."""
        for row in discarded(outcome):
            self.pool.learn(row, self.size)
        super().observe(outcome)
        self.pool.learn(self.text_[-self.size - len(outcome.tokens) :], self.size)


def discarded(outcome: Outcome) -> Iterator[list[int]]:
    """The target's answers along each refused branch, from the token that stands in its place on."""
    tree, kept = outcome.tree, set(outcome.verdict.path)
    if len(tree) == len(kept):
        return
    answers = outcome.scores.argmax()
    inner = set(tree.parents.tolist())
    for leaf in range(1, len(tree)):
        if leaf not in inner and leaf not in kept:
            path = tree.path(leaf)
            fork = max(place for place, node in enumerate(path) if node in kept)
            yield answers[path[fork:]].tolist()

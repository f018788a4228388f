"""Copy along a long match, grow a tree where there is none.

SAM-Decoding (arXiv 2411.10666). Two suffix automata, one of this text and one of a text the user names, tell
how long an end of the output is known; the longer known it is, the more tokens are copied along it. The named
text must win by a margin. Where neither match is long enough another drafter grows its tree instead.
Following counts token by token takes the place of the authors' copy from the first occurrence.
"""

from dataclasses import dataclass, field
from typing import ClassVar

from sapwood.drafters.automaton import START, Automaton, Match
from sapwood.drafters.corpus import open_corpus
from sapwood.drafters.follow import Follow, Guess, chosen, trust
from sapwood.drafters.recycling import Recycling
from sapwood.part import at_least, between
from sapwood.protocols import Drafter, Frontier, Request, Setting
from sapwood.records import Draw, Outcome
from sapwood.rng import Rng
from sapwood.tree import ROOT, Tree

LARGEST = 500_000  # tokens of a named text, at about 400 bytes each
REACH = 32  # prompt tokens matched against the named text

Place = tuple[Automaton, Match, int]  # where, what matches there, tokens that may still be copied


@dataclass
class Sam(Follow):
    """Copy along a long match in the text, or in a text the user names; else let another drafter grow a tree."""

    corpus: str = ""  # a file of plain text to match as well
    threshold: int = 5  # tokens of a match worth copying along, >= 1
    margin: int = 5  # tokens by which a match in the named text must be longer, >= 0
    pace: float = 4.0  # tokens copied for each one matched, besides the first
    longest: int = 40  # most tokens copied at once, >= 1
    otherwise: Drafter = field(default_factory=lambda: Recycling(pairs=0, prompt=0))  # drafts where no match is long

    paper: ClassVar[str] = "2411.10666"

    def __post_init__(self) -> None:
        at_least(1, threshold=self.threshold, longest=self.longest)
        at_least(0, margin=self.margin)
        between(0, 100, pace=self.pace)

    @property
    def draws(self) -> Draw:  # type: ignore[override]
        """Chosen tokens alone."""
        return chosen(self, self.otherwise)

    @property
    def needs(self) -> frozenset[str]:  # type: ignore[override]
        """What the other drafter needs."""
        return self.otherwise.needs

    @property
    def fan(self) -> int:
        """As the other drafter."""
        return self.otherwise.fan

    def bind(self, setting: Setting) -> None:
        """Read the named text."""
        self.otherwise.source = self.source
        super().bind(setting)
        self.known = Automaton()
        if self.corpus:
            self.known.learn(open_corpus(self.corpus, setting, most=LARGEST).tokens.tolist())

    def reset(self, request: Request) -> None:
        """Read the prompt."""
        super().reset(request)
        self.local_ = Automaton()
        self.local_.learn(self.text_)
        self.end_: Match = (START, 0)  # how the named text matches the end of this one
        self._follow(self.text_[-REACH:])

    def observe(self, outcome: Outcome) -> None:
        """Append what was emitted."""
        super().observe(outcome)
        self.local_.extend(outcome.tokens)
        self._follow(outcome.tokens)

    def _follow(self, tokens: list[int]) -> None:
        for token in tokens:
            self.end_ = self.known.advance(self.end_, token)

    def expand(self, tree: Tree, frontier: Frontier, rng: Rng) -> None:
        """Copy in this round, or let the other drafter have it."""
        super().expand(tree, frontier, rng)
        if self.places_[ROOT] is None:
            self.otherwise.expand(tree, frontier, rng)

    def start(self, rng: Rng) -> Place | None:
        """The longer match, if it is long enough."""
        local, matched = self.local_.match(), self.local_.match()[1]
        far = self.end_[1] - self.margin
        if max(matched, far) < self.threshold:
            return None
        book, match = (self.local_, local) if matched >= far else (self.known, self.end_)
        return book, match, min(int(1 + self.pace * max(matched, far)), self.longest)

    def step(self, place: Place, token: int) -> Place | None:
        """The match after one more token; None where it breaks."""
        book, match, left = place
        after = book.advance(match, token)
        return (book, after, left - 1) if after[1] > match[1] else None

    def guesses(self, place: Place) -> list[Guess]:
        """The commonest continuation of the match."""
        book, match, left = place
        context = next(book.contexts(match), None) if left > 0 else None
        return [(context[1][0][0], trust(context[0]))] if context else []

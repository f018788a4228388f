"""Copies along a long match; without one, another drafter grows its tree.

SAM-Decoding (arXiv 2411.10666). Two suffix automata, one of this text and one of a text that the
user names, hold the longest suffix of the output that occurred before; the longer it is, the more
tokens are copied. The named text must have the longer match by a margin. If neither match is long
enough, another drafter grows its tree. Here the commonest continuation is followed token by token;
the authors copy from the first occurrence.
"""

from dataclasses import dataclass, field
from typing import ClassVar

from sapwood.core.part import at_least, between
from sapwood.core.protocols import Drafter, EngineContext, Frontier, RequestContext
from sapwood.core.rng import Rng
from sapwood.core.tree import ROOT, Tree
from sapwood.core.types import Draw, Outcome
from sapwood.drafters.lookup.corpus import open_corpus
from sapwood.drafters.lookup.lookup_base import Candidate, LookupBase, chosen, trust
from sapwood.drafters.lookup.recycling import Recycling
from sapwood.drafters.lookup.suffix_automaton import START, Match, SuffixAutomaton

LARGEST = 500_000  # tokens of a named text, at about 400 bytes each
REACH = 32  # prompt tokens matched against the named text

# where, what matches there, tokens that may still be copied
Place = tuple[SuffixAutomaton, Match, int]


@dataclass
class Sam(LookupBase):
    """Copies along a long match in the text or a named text; else another drafter drafts."""

    corpus: str = ""  # path of a plain text file that is matched too
    threshold: int = 5  # least tokens of a match, >= 1
    margin: int = 5  # tokens by which a match in the named text must be longer, >= 0
    pace: float = 4.0  # tokens copied for each matched one, besides the first, 0 to 100
    longest: int = 40  # most tokens copied at once, >= 1
    # drafter used without a long match
    otherwise: Drafter = field(default_factory=lambda: Recycling(pairs=0, prompt=0))

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
        """The other drafter's needs."""
        return self.otherwise.needs

    @property
    def fan(self) -> int:
        """The other drafter's fan."""
        return self.otherwise.fan

    def bind(self, setting: EngineContext) -> None:
        """Read the named text."""
        self.otherwise.source = self.source
        super().bind(setting)
        self.known = SuffixAutomaton()
        if self.corpus:
            self.known.learn(open_corpus(self.corpus, setting, most=LARGEST).tokens.tolist())

    def reset(self, request: RequestContext) -> None:
        """Read the prompt."""
        super().reset(request)
        self.local_ = SuffixAutomaton()
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
        local = self.local_.match()
        matched = self.local_.match()[1]
        far = self.end_[1] - self.margin
        if max(matched, far) < self.threshold:
            return None
        automaton, match = (self.local_, local) if matched >= far else (self.known, self.end_)
        return automaton, match, min(int(1 + self.pace * max(matched, far)), self.longest)

    def step(self, place: Place, token: int) -> Place | None:
        """The match after one more token; None where it breaks."""
        automaton, match, left = place
        after = automaton.advance(match, token)
        return (automaton, after, left - 1) if after[1] > match[1] else None

    def candidates(self, place: Place) -> list[Candidate]:
        """The commonest continuation of the match."""
        automaton, match, left = place
        context = next(automaton.contexts(match), None) if left > 0 else None
        return [(context[1][0][0], trust(context[0]))] if context else []

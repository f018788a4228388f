"""Search a table of trigrams for the chains that are worth checking.

ADED (arXiv 2407.12021). The table counts what followed each two tokens, in a text the user names and in
everything said since, prompts included; where two are new, one decides. Chains are found by a tree search that
visits each token in proportion to its chance, and none for ever: the child of most

    score / n  +  P sqrt(N) / (1 + n) (c1 + ln((N + c2 + 1) / c2))

is followed, n and N being its own visits and its parent's, P its chance in the table, and the score the sum of the
chances of the chains that went through it; a child never visited comes first. The tree is what was visited, and a
node's chance its share of its parent's visits. What a chain scores is not in the paper: its chance is ours.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

from sapwood.drafters.corpus import open_corpus
from sapwood.drafters.counts import Counts
from sapwood.drafters.follow import Guess
from sapwood.drafters.planned import Planned
from sapwood.part import at_least, between
from sapwood.protocols import Request, Setting
from sapwood.records import Outcome
from sapwood.rng import Rng
from sapwood.tree import CAPACITY, Tree

C1, C2 = 32.0, 8.0  # the weight of looking elsewhere, and the visits after which it grows; as in the authors' code
LARGEST = 500_000  # tokens of a named text, at two contexts each


class Visited:
    """A token of the search: its chance in the table, its visits, and what it led to."""

    def __init__(self, token: int, chance: float) -> None:
        self.token, self.chance = token, chance
        self.visits, self.score = 0, 0.0
        self.children: list[Visited] | None = None  # None before anybody asked

    def best(self) -> "Visited | None":
        """The child to follow next; the likelier first among equals."""
        reach = math.sqrt(self.visits) * (C1 + math.log((self.visits + C2 + 1) / C2))
        return max(self.children or (), key=lambda child: child.worth(reach), default=None)

    def worth(self, reach: float) -> float:
        """What following this child promises."""
        if not self.visits:
            return math.inf
        return self.score / self.visits + self.chance * reach / (1 + self.visits)


@dataclass
class Aded(Planned):
    """Chains of trigrams, counted in all that was said, that a tree search visits most."""

    corpus: str = ""  # a file of plain text to count first
    searches: int = 64  # chains followed in a round, 1 to 512
    length: int = 6  # tokens of a chain, 1 to 32
    wide: int = 8  # continuations of a context that are looked at, >= 1
    memory: int = 200_000  # contexts kept of what was said, at about 400 bytes each; past it the oldest half goes

    paper: ClassVar[str] = "2407.12021"

    def __post_init__(self) -> None:
        between(1, 512, searches=self.searches)
        between(1, 32, length=self.length)
        at_least(1, wide=self.wide, memory=self.memory)

    def bind(self, setting: Setting) -> None:
        """Count the named text, and begin a table that all requests share."""
        self.counts, self.named = Counts(2, self.memory), Counts(2)
        if self.corpus:
            self.named.learn([], open_corpus(self.corpus, setting, most=LARGEST).tokens.tolist())

    def reset(self, request: Request) -> None:
        """Count the prompt."""
        super().reset(request)
        self.counts.learn([], self.text_)

    def observe(self, outcome: Outcome) -> None:
        """Count what was emitted."""
        self.counts.learn(self.text_, outcome.tokens)
        super().observe(outcome)

    def plan(self, rng: Rng) -> Tree:
        """What so many searches visited."""
        top = Visited(self.text_[-1], 1.0)
        for _ in range(self.searches):
            self._search(top)
        plan = Tree(top.token)
        nodes = [top]  # in the order of the plan, level by level
        for node, one in enumerate(nodes):
            for child in one.children or ():
                if child.visits and len(plan) < CAPACITY:
                    plan.add(node, child.token, child.visits / one.visits)
                    nodes.append(child)
        return plan

    def _search(self, top: Visited) -> None:
        """Follow one chain, and tell everyone on it how likely it was."""
        path, context, chance = [top], tuple(self.text_[-2:]), 1.0
        while len(path) <= self.length:
            one = path[-1]
            if one.children is None:
                one.children = [Visited(*guess) for guess in self._known(context)]
            after = one.best()
            if after is None:
                break
            path.append(after)
            context, chance = (*context, after.token)[-2:], chance * after.chance
        for one in path:
            one.visits += 1
            one.score += chance

    def _known(self, context: tuple[int, ...]) -> list[Guess]:
        """Continuations of the last two tokens, or of the last where the two are new; what was said comes first."""
        levels = (table.after(end) for end in (context, context[-1:]) for table in (self.counts, self.named))
        return next(filter(None, levels), [])[: self.wide]

"""Drafts chains of trigrams, found by a tree search over a table of counts.

ADED (arXiv 2407.12021). The table counts which tokens followed each pair of tokens, in a text that
the user names and in all prompts and outputs since; a pair that was never seen is replaced by its
last token. The search walks from the root, chain by chain, always to the child with the largest

    score / n  +  P sqrt(N) / (1 + n) (c1 + ln((N + c2 + 1) / c2))

where n and N are the visits of the child and of its parent, P is the child's probability in the
table, and the score is the sum of the probabilities of the chains through it. A child without
visits comes first. All visited nodes make the tree; a node's probability is its share of its
parent's visits. The paper does not define the score of a chain: its probability is our choice.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

from sapwood.core.part import at_least, between
from sapwood.core.protocols import EngineContext, RequestContext
from sapwood.core.rng import Rng
from sapwood.core.tree import CAPACITY, Tree
from sapwood.core.types import Outcome
from sapwood.drafters.lookup.corpus import open_corpus
from sapwood.drafters.lookup.lookup_base import Candidate
from sapwood.drafters.lookup.ngram_counts import NgramCounts
from sapwood.drafters.lookup.planned_base import PlannedBase

# weight of exploration, and the visits after which it grows; as in the authors' code
C1 = 32.0
C2 = 8.0
LARGEST = 500_000  # tokens of a named text, at two contexts each


class TrigramNode:
    """A node of the search: its probability in the table, its visits and its score."""

    def __init__(self, token: int, chance: float) -> None:
        self.token = token
        self.chance = chance
        self.visits = 0
        self.score = 0.0
        self.children: list[TrigramNode] | None = None  # None before the first visit

    def best(self) -> "TrigramNode | None":
        """The child to follow next; the likelier first among equals."""
        reach = math.sqrt(self.visits) * (C1 + math.log((self.visits + C2 + 1) / C2))
        return max(self.children or (), key=lambda child: child.worth(reach), default=None)

    def worth(self, reach: float) -> float:
        """Search score of this child."""
        if not self.visits:
            return math.inf
        return self.score / self.visits + self.chance * reach / (1 + self.visits)


@dataclass
class Aded(PlannedBase):
    """Chains of trigrams that a tree search visits most; counts of prompts, outputs and a text."""

    corpus: str = ""  # path of a plain text file that is counted first
    searches: int = 64  # chains searched in a round, 1 to 512
    length: int = 6  # tokens of a chain, 1 to 32
    wide: int = 8  # continuations of a context that are considered, >= 1
    # most contexts of prompts and outputs, about 400 bytes each; when full the oldest half goes
    memory: int = 200_000

    paper: ClassVar[str] = "2407.12021"

    def __post_init__(self) -> None:
        between(1, 512, searches=self.searches)
        between(1, 32, length=self.length)
        at_least(1, wide=self.wide, memory=self.memory)

    def bind(self, setting: EngineContext) -> None:
        """Count the named text, and begin a table that all requests share."""
        self.counts = NgramCounts(2, self.memory)
        self.named = NgramCounts(2)
        if self.corpus:
            self.named.learn([], open_corpus(self.corpus, setting, most=LARGEST).tokens.tolist())

    def reset(self, request: RequestContext) -> None:
        """Count the prompt."""
        super().reset(request)
        self.counts.learn([], self.text_)

    def observe(self, outcome: Outcome) -> None:
        """Count what was emitted."""
        self.counts.learn(self.text_, outcome.tokens)
        super().observe(outcome)

    def plan(self, rng: Rng) -> Tree:
        """The tree that the searches visited."""
        top = TrigramNode(self.text_[-1], 1.0)
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

    def _search(self, top: TrigramNode) -> None:
        """Follow one chain, and back up its probability to all its nodes."""
        path = [top]
        context = tuple(self.text_[-2:])
        chance = 1.0
        while len(path) <= self.length:
            one = path[-1]
            if one.children is None:
                one.children = [TrigramNode(*one) for one in self._known(context)]
            after = one.best()
            if after is None:
                break
            path.append(after)
            context = (*context, after.token)[-2:]
            chance = chance * after.chance
        for one in path:
            one.visits += 1
            one.score += chance

    def _known(self, context: tuple[int, ...]) -> list[Candidate]:
        """Continuations of the last two tokens, or of the last one; emitted text comes first."""
        levels = (
            table.after(end)
            for end in (context, context[-1:])
            for table in (self.counts, self.named)
        )
        return next(filter(None, levels), [])[: self.wide]

"""Drafts rows of n-grams: earlier continuations of the last tokens, and the target's bigrams.

N-Grammys (arXiv 2411.03786). The first rows are copied from the text after earlier occurrences of
the last tokens, the commonest first, then the newest; the other rows are bigrams, the best tokens
after the last one, each continued greedily (the paper's extended bigrams). The paper verifies rows
as a batch and computes the bigrams of every token beforehand. Here the rows are one tree, so that
shared beginnings are verified once, and bigrams are the target's outputs after the same token in
earlier passes.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import ClassVar

from sapwood.core.part import at_least, between
from sapwood.core.protocols import Drafter, RequestContext
from sapwood.core.rng import Rng
from sapwood.core.tree import ROOT, Tree
from sapwood.core.types import Draw, Outcome
from sapwood.drafters.lookup.lookup_base import Candidate, chosen, trust
from sapwood.drafters.lookup.planned_base import PlannedBase, add_row
from sapwood.drafters.lookup.recycling import Recycling

SCAN = 256  # occurrences of the last tokens that are considered, newest first


@dataclass
class NGrammys(PlannedBase):
    """Earlier continuations of the last tokens, and rows of the target's best bigrams."""

    rows: int = 10  # rows in all, 1 to 64
    length: int = 10  # tokens of a row, 1 to 15
    context: int = 1  # last tokens that must occur before a copied row, >= 1
    # drafts the rows that are left
    bigrams: Drafter = field(default_factory=lambda: Recycling(count=10, pairs=0))

    paper: ClassVar[str] = "2411.03786"

    def __post_init__(self) -> None:
        between(1, 64, rows=self.rows)
        between(1, 15, length=self.length)
        at_least(1, context=self.context)

    @property
    def draws(self) -> Draw:  # type: ignore[override]
        """Chosen tokens alone."""
        return chosen(self, self.bigrams)

    @property
    def needs(self) -> frozenset[str]:  # type: ignore[override]
        """The needs of the bigram drafter."""
        return self.bigrams.needs

    def reset(self, request: RequestContext) -> None:
        """Index the prompt."""
        super().reset(request)
        self.ends_: dict[int, list[int]] = {}  # token -> its places
        self._index(0)

    def observe(self, outcome: Outcome) -> None:
        """Index what was emitted."""
        begin = len(self.text_)
        super().observe(outcome)
        self._index(begin)

    def _index(self, begin: int) -> None:
        for place in range(begin, len(self.text_)):
            self.ends_.setdefault(self.text_[place], []).append(place)

    def plan(self, rng: Rng) -> Tree:
        """Copied rows first, then bigrams."""
        plan = Tree(self.text_[-1])
        copied = self._copied()
        for row in copied:
            add_row(plan, row)
        for row in self._rolled(self.rows - len(copied), rng):
            add_row(plan, row)
        return plan

    def _copied(self) -> list[list[Candidate]]:
        """Rows that followed the last tokens before, by count, then the newest first."""
        tail = self.text_[-self.context :]
        seen = Counter[tuple[int, ...]]()
        # the last place of all is the root's own
        for place in self.ends_[tail[-1]][-2 : -SCAN - 2 : -1]:
            if self.text_[max(place + 1 - self.context, 0) : place + 1] == tail:
                seen[tuple(self.text_[place + 1 : place + 1 + self.length])] += 1
        best = seen.most_common(self.rows)  # in the order they were met among equals
        return [
            [(token, trust(self.context + depth) * (1.0 if depth else count / seen.total()))
             for depth, token in enumerate(row)]
            for row, count in best
        ]  # fmt: skip

    def _rolled(self, rows: int, rng: Rng) -> list[list[Candidate]]:
        """The best bigrams, each continued greedily."""
        if not rows:
            return []
        tree = Tree(self.text_[-1])
        self.bigrams.expand(tree, [(ROOT, rows)], rng)
        rolled = []
        for node in tree.children(ROOT):
            row = [node]
            while len(row) < self.length:
                self.bigrams.expand(tree, [(row[-1], 1)], rng)
                children = tree.children(row[-1])
                if not children:
                    break
                row.append(children[0])
            rolled.append([(int(tree.tokens[node]), float(tree.probs[node])) for node in row])
        return rolled

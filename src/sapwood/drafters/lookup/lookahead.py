"""Drafts n-grams that come from a window of parallel positions, verified in the same tree.

Lookahead decoding (arXiv 2402.02057). The window has `window` columns, one for each coming
position, and fewer than `size` levels. Level 0 is a row of drafted tokens, the root its first
column; every further level holds the target's outputs for the level before, one pass earlier. The
context of a token is level 0 up to its column, then its own column, which is a path of a tree. Each
pass has outputs for the last level: a column and its output are an n-gram, stored under its first
token; the lowest level is dropped and the outputs become the last one. The n-grams that begin with
the root are drafted.

The window is verified with the tree, so its tokens may be accepted too; the public code verifies
only the n-grams. It also moves the window by one column a pass however many tokens were accepted,
which leaves columns behind the text; with `follow` the window moves with the text.
"""

from dataclasses import dataclass
from typing import ClassVar

from sapwood.core.part import at_least
from sapwood.core.protocols import RequestContext
from sapwood.core.rng import Rng
from sapwood.core.tree import ROOT, Tree
from sapwood.core.types import Outcome
from sapwood.drafters.lookup.phrases import PhrasePool
from sapwood.drafters.lookup.planned_base import PlannedBase
from sapwood.drafters.lookup.token_chains import add_chain, find_chain, random_tokens

# probabilities reported for n-grams and for the window: policies only compare them
NGRAM = 0.5
WINDOW = 0.01


@dataclass
class Lookahead(PlannedBase):
    """N-grams from a window of parallel positions, which is part of the verified tree."""

    window: int = 7  # columns, >= 1
    size: int = 5  # tokens of an n-gram, >= 3: one more than the window has levels
    ngrams: int = 7  # n-grams stored for each first token, and verified, >= 1
    follow: bool = False  # move the window with the text instead of one column a pass
    prompt: bool = False  # store n-grams of the prompt and the output too

    paper: ClassVar[str] = "2402.02057"
    reads_scores = True

    def __post_init__(self) -> None:
        at_least(1, window=self.window, ngrams=self.ngrams)
        at_least(3, size=self.size)

    def reset(self, request: RequestContext) -> None:
        """Begin with one level of random tokens, of which every further level takes one."""
        super().reset(request)
        self.prompt_ = request.prompt
        self.pool_ = PhrasePool(self.ngrams)
        # level 0 lacks the root
        self.levels_ = [random_tokens(self.prompt_, len(self.text_), self.window + self.size - 3)]
        if self.prompt:
            self.pool_.learn(self.text_, self.size - 1)

    def columns(self) -> list[list[int]]:
        """Each column's tokens above level 0; the root's column first."""
        return [
            [level[column] for level in self.levels_[1:]]
            for column in range(len(self.levels_[0]) + 1)
        ]

    def plan(self, rng: Rng) -> Tree:
        """The n-grams after the root, then the window: level 0 as a chain, a column below each."""
        tree = Tree(self.text_[-1])
        for phrase in self.pool_.after(self.text_[-1]):
            add_chain(tree, ROOT, phrase, NGRAM)
        spine = add_chain(tree, ROOT, self.levels_[0], WINDOW)
        for node, column in zip([ROOT, *spine], self.columns(), strict=True):
            add_chain(tree, node, column, WINDOW)
        return tree

    def observe(self, outcome: Outcome) -> None:
        """Take the outputs for the last level, store the n-grams and move the window."""
        outputs = self._outputs(outcome)
        root = self.text_[-1]
        if len(self.levels_) == self.size - 1:
            for first, column, output in zip(
                [root, *self.levels_[0]], self.columns(), outputs, strict=True
            ):
                if output is not None:
                    self.pool_.add(first, (*column, output))
        self._move(outputs, len(outcome.tokens) - 1 if self.follow else 0)
        super().observe(outcome)
        if self.prompt:
            self.pool_.learn(self.text_[-self.size - len(outcome.tokens) :], self.size - 1)

    def _outputs(self, outcome: Outcome) -> list[int | None]:
        """The output after each column; None where the verified tree does not hold the column."""
        best = outcome.scores.argmax()
        tree = outcome.tree
        spine = find_chain(tree, ROOT, self.levels_[0])
        found: list[int | None] = []
        for place, column in enumerate(self.columns()):
            nodes = find_chain(tree, spine[place], column) if place < len(spine) else []
            found.append(int(best[nodes[-1]]) if len(nodes) == len(column) + 1 else None)
        return found

    def _move(self, outputs: list[int | None], skip: int) -> None:
        """Add the outputs as the last level; drop the lowest level if full, else the first column.

        `skip` more columns are dropped at the front, and as many random tokens added at the end.
        """
        end = len(self.text_)  # position of the first output
        last = [
            random_tokens(self.prompt_, end + i, 1)[0] if one is None else one
            for i, one in enumerate(outputs)
        ]
        levels = [*self.levels_, last]
        full = len(levels) == self.size
        levels = [levels[1][1:], *levels[2:]] if full else [level[1:] for level in levels]
        fill = random_tokens(self.prompt_, end + len(outputs), skip)
        self.levels_ = [(level + fill)[skip:] for level in levels]

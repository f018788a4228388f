"""Let a window of guesses ride along in every pass, and check the n-grams it leaves behind.

Lookahead decoding (arXiv 2402.02057). The window has `window` columns, one per coming position, and fewer
than `size` levels. Level 0 is a row of guesses, the root its first column; every further level holds what the
target answered to the level before, one pass ago. A token's context is level 0 up to its column, then its
own column, which is a path of a tree. Each pass answers the last level: a column and its answer are an
n-gram, kept under its first token; the lowest level is dropped and the answers become the last one. The
n-grams that begin with the root are the guesses proper.

As one tree the window is checked too, so its tokens may be accepted; the public code only checks the n-grams.
It also moves the window by one column a pass however many tokens were accepted, which leaves columns behind
the text; `follow` moves it with the text.
"""

from dataclasses import dataclass
from typing import ClassVar

from sapwood.drafters.answers import along, lay, strays
from sapwood.drafters.phrases import Pool
from sapwood.drafters.planned import Planned
from sapwood.part import at_least
from sapwood.protocols import Request
from sapwood.records import Outcome
from sapwood.rng import Rng
from sapwood.tree import ROOT, Tree

GUESS, RIDE = 0.5, 0.01  # chances reported for n-grams and for the window: policies only compare


@dataclass
class Lookahead(Planned):
    """Guess by n-grams from a window of parallel guesses that rides in the checked tree."""

    window: int = 7  # columns, >= 1
    size: int = 5  # tokens of an n-gram, >= 3: one more than the window has levels
    ngrams: int = 7  # kept per first token, and checked, >= 1
    follow: bool = False  # move the window with the text, not by one column a pass
    prompt: bool = False  # take n-grams from the prompt and the text, too

    paper: ClassVar[str] = "2402.02057"

    def __post_init__(self) -> None:
        at_least(1, window=self.window, ngrams=self.ngrams)
        at_least(3, size=self.size)

    def reset(self, request: Request) -> None:
        """Begin with one level of stray tokens, of which every further level will cost one."""
        super().reset(request)
        self.prompt_ = request.prompt
        self.pool_ = Pool(self.ngrams)
        self.levels_ = [strays(self.prompt_, len(self.text_), self.window + self.size - 3)]  # level 0 lacks the root
        if self.prompt:
            self.pool_.learn(self.text_, self.size - 1)

    def columns(self) -> list[list[int]]:
        """Each column's tokens above level 0; the root's column first."""
        return [[level[column] for level in self.levels_[1:]] for column in range(len(self.levels_[0]) + 1)]

    def plan(self, rng: Rng) -> Tree:
        """The n-grams after the root, then the window: level 0 in a row, each column hanging from its own."""
        tree = Tree(self.text_[-1])
        for phrase in self.pool_.after(self.text_[-1]):
            lay(tree, ROOT, phrase, GUESS)
        spine = lay(tree, ROOT, self.levels_[0], RIDE)
        for node, column in zip([ROOT, *spine], self.columns(), strict=True):
            lay(tree, node, column, RIDE)
        return tree

    def observe(self, outcome: Outcome) -> None:
        """Read the answers to the last level, keep the n-grams and move the window."""
        answers, root = self._answers(outcome), self.text_[-1]
        if len(self.levels_) == self.size - 1:
            for first, column, answer in zip([root, *self.levels_[0]], self.columns(), answers, strict=True):
                if answer is not None:
                    self.pool_.add(first, (*column, answer))
        self._move(answers, len(outcome.tokens) - 1 if self.follow else 0)
        super().observe(outcome)
        if self.prompt:
            self.pool_.learn(self.text_[-self.size - len(outcome.tokens) :], self.size - 1)

    def _answers(self, outcome: Outcome) -> list[int | None]:
        """The answer to the end of each column; None where the checked tree does not hold it."""
        best, tree = outcome.scores.argmax(), outcome.tree
        spine = along(tree, ROOT, self.levels_[0])
        found: list[int | None] = []
        for place, column in enumerate(self.columns()):
            nodes = along(tree, spine[place], column) if place < len(spine) else []
            found.append(int(best[nodes[-1]]) if len(nodes) == len(column) + 1 else None)
        return found

    def _move(self, answers: list[int | None], skip: int) -> None:
        """Add the answers as the last level; drop the lowest once the window is full, else the first column.

        Of the columns, `skip` more are dropped in front and stray tokens put in behind.
        """
        end = len(self.text_)  # position of the first answer
        last = [strays(self.prompt_, end + i, 1)[0] if one is None else one for i, one in enumerate(answers)]
        levels = [*self.levels_, last]
        full = len(levels) == self.size
        levels = [levels[1][1:], *levels[2:]] if full else [level[1:] for level in levels]
        fill = strays(self.prompt_, end + len(answers), skip)
        self.levels_ = [(level + fill)[skip:] for level in levels]

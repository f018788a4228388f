"""Guess the next tokens by what the target last answered at their positions.

Jacobi decoding (arXiv 2305.10427): the next tokens are the fixed point of "every position is the target's
best token after the present guesses to its left". Each pass answers all positions at once; the answers,
right context or not, are the next guesses, and what a pass confirms is text. Positions that no pass has
answered yet hold stray tokens of the prompt.
"""

from dataclasses import dataclass
from typing import ClassVar

from sapwood.drafters.answers import along, lay, strays
from sapwood.drafters.planned import Planned
from sapwood.part import at_least
from sapwood.protocols import Request
from sapwood.records import Outcome
from sapwood.rng import Rng
from sapwood.tree import ROOT, Tree

HOPE = 0.5  # chance reported for a guess: nobody knows it, and policies only compare


@dataclass
class Jacobi(Planned):
    """Guess the next positions by the target's own last answers there."""

    length: int = 5  # positions guessed, >= 1

    paper: ClassVar[str] = "2305.10427"

    def __post_init__(self) -> None:
        at_least(1, length=self.length)

    def reset(self, request: Request) -> None:
        """Begin with stray tokens."""
        super().reset(request)
        self.prompt_ = request.prompt
        self.guessed_ = strays(self.prompt_, len(self.text_), self.length)  # of the positions after the root

    def plan(self, rng: Rng) -> Tree:
        """The guesses in a row."""
        tree = Tree(self.text_[-1])
        lay(tree, ROOT, self.guessed_, HOPE)
        return tree

    def observe(self, outcome: Outcome) -> None:
        """Take the answers at the positions after the next root."""
        super().observe(outcome)
        answered = outcome.scores.argmax()[along(outcome.tree, ROOT, self.guessed_)].tolist()
        root = len(outcome.tokens)  # where the next root stands, counted from the last one
        known = answered[root : root + self.length]
        self.guessed_ = known + strays(self.prompt_, len(self.text_) + len(known), self.length - len(known))

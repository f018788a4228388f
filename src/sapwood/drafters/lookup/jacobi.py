"""Drafts the target's last outputs at the next positions.

Jacobi decoding (arXiv 2305.10427): the next tokens are the fixed point of "the token at every
position is the target's best one after the drafted tokens before it". Each pass has an output at
every position; these outputs, whether their context was right or not, are the next draft, and
tokens that a pass confirms are emitted. Positions without an output so far hold random tokens of
the prompt.
"""

from dataclasses import dataclass
from typing import ClassVar

from sapwood.core.part import at_least
from sapwood.core.protocols import RequestContext
from sapwood.core.rng import Rng
from sapwood.core.tree import ROOT, Tree
from sapwood.core.types import Outcome
from sapwood.drafters.lookup.planned_base import PlannedBase
from sapwood.drafters.lookup.token_chains import add_chain, find_chain, random_tokens

HOPE = 0.5  # probability reported for a draft: unknown, and policies only compare


@dataclass
class Jacobi(PlannedBase):
    """The target's own last outputs at the next positions."""

    length: int = 5  # drafted positions, >= 1

    paper: ClassVar[str] = "2305.10427"
    reads_scores = True

    def __post_init__(self) -> None:
        at_least(1, length=self.length)

    def reset(self, request: RequestContext) -> None:
        """Begin with random tokens of the prompt."""
        super().reset(request)
        self.prompt_ = request.prompt
        # of the positions after the root
        self.drafted_ = random_tokens(self.prompt_, len(self.text_), self.length)

    def plan(self, rng: Rng) -> Tree:
        """The drafted tokens as one chain."""
        tree = Tree(self.text_[-1])
        add_chain(tree, ROOT, self.drafted_, HOPE)
        return tree

    def observe(self, outcome: Outcome) -> None:
        """Take the outputs at the positions after the next root."""
        super().observe(outcome)
        answered = outcome.scores.argmax()[find_chain(outcome.tree, ROOT, self.drafted_)].tolist()
        root = len(outcome.tokens)  # where the next root stands, counted from the last one
        known = answered[root : root + self.length]
        self.drafted_ = known + random_tokens(
            self.prompt_, len(self.text_) + len(known), self.length - len(known)
        )

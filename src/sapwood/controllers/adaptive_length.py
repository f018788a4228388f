"""Draft length by what was drafted and what was accepted (DiffuSpec, arXiv 2510.02358).

Two moving averages: the tokens that a draft had before it ended, and those that were accepted. The
next draft is as long as the first, and longer by a step while everything is accepted.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

from sapwood.core.part import Part, at_least, between
from sapwood.core.protocols import RequestContext
from sapwood.core.types import Budget, Outcome


@dataclass
class AdaptiveLength(Part):
    """Length follows the average draft, and grows by a step while all of it is accepted."""

    least: int = 20  # shortest draft, >= 1
    most: int = 30  # longest; the first round has it
    step: int = 10  # added while the averages are equal
    keep: float = 0.5  # weight of the average against the newest round
    width: int = 5  # candidates of a place

    paper: ClassVar[str] = "2510.02358"

    def __post_init__(self) -> None:
        at_least(1, least=self.least, most=self.most, width=self.width)
        at_least(0, step=self.step)
        between(0, 1, keep=self.keep)

    def reset(self, request: RequestContext) -> None:
        """Begin with the longest draft and no averages."""
        self.length_ = self.most
        self.drafted_: float | None = None
        self.accepted_ = 0.0

    def budget(self) -> Budget:
        """One path of the present length."""
        return Budget(self.length_, self.length_, self.width)

    def observe(self, outcome: Outcome) -> None:
        """Average what was drafted and accepted; a round without a draft changes nothing."""
        if len(outcome.tree) == 1:
            return
        drafted, accepted = float(outcome.tree.height), float(outcome.verdict.accepted)
        if self.drafted_ is None:
            self.drafted_, self.accepted_ = drafted, accepted
        else:
            self.drafted_ = self.keep * self.drafted_ + (1 - self.keep) * drafted
            self.accepted_ = self.keep * self.accepted_ + (1 - self.keep) * accepted
        more = self.step if self.accepted_ >= self.drafted_ else 0
        wanted = math.ceil(self.drafted_) + more
        self.length_ = max(min(wanted, self.most), min(self.least, self.most))

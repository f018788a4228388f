"""Drafts deeper after a full acceptance, and less deep after a rejection.

The schedule of transformers' assisted generation: +2 when everything was accepted, else -1.
"""

from dataclasses import dataclass

from sapwood.core.part import Part, at_least
from sapwood.core.protocols import RequestContext
from sapwood.core.types import Budget, Outcome


@dataclass
class Heuristic(Part):
    """Depth +2 after a round accepted to the last level, -1 otherwise."""

    start: int = 5  # depth of the first round
    most: int = 20  # deepest
    nodes: int = 60
    width: int = 4

    def __post_init__(self) -> None:
        at_least(1, start=self.start, most=self.most, nodes=self.nodes, width=self.width)

    def reset(self, request: RequestContext) -> None:
        """Begin at the first depth."""
        self.depth_ = self.start

    def budget(self) -> Budget:
        """The present depth."""
        return Budget(self.nodes, self.depth_, self.width)

    def observe(self, outcome: Outcome) -> None:
        """Step up or down; a round without a draft changes nothing."""
        if len(outcome.tree) == 1:
            return
        full = outcome.verdict.accepted == outcome.tree.height
        self.depth_ = min(self.depth_ + 2, self.most) if full else max(self.depth_ - 1, 1)

"""Expand the best leaves of each level, then keep the best nodes of the whole tree.

EAGLE-2 (arXiv 2406.16858, sections 4.1 and 4.2). Reach never rises along a path and earlier nodes
win ties, so the kept set is always a tree.
"""

from dataclasses import dataclass, field
from typing import ClassVar

from sapwood.estimators.raw import Raw
from sapwood.part import Part, at_least
from sapwood.policies.reach import front, value, worth
from sapwood.protocols import Estimator, Frontier
from sapwood.records import Budget, Levels, Prune
from sapwood.tree import Tree


@dataclass
class Beam(Part):
    """Expand the best leaves of each level; keep the best nodes overall."""

    beam: int = 10  # leaves expanded per level, >= 1
    estimator: Estimator = field(default_factory=Raw)

    paper: ClassVar[str] = "2406.16858"
    prunes: ClassVar[Prune] = Prune.NODES

    def __post_init__(self) -> None:
        at_least(1, beam=self.beam)

    def frontier(self, tree: Tree, budget: Budget) -> Frontier:
        """The best nodes of the deepest level."""
        if tree.height >= budget.depth:
            return []
        reach = value(tree, self.estimator)
        return [(node, budget.width) for node in front(tree, reach, self.beam)]

    def levels(self, budget: Budget) -> Levels | None:
        """The same tree for a drafter that grows it whole; None where the estimator must see it grow."""
        lines = getattr(self.estimator, "lines", None)
        if lines is None or budget.price is not None:
            return None
        return Levels(budget.nodes, budget.depth, self.beam, budget.width, lines)

    def prune(self, tree: Tree, budget: Budget) -> Tree:
        """The best nodes, as many as the budget allows and the price justifies."""
        value(tree, self.estimator)
        return tree.best(worth(tree, budget))

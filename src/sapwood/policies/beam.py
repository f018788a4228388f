"""Expand the best leaves of each level, then keep the best nodes of the whole tree.

EAGLE-2 (arXiv 2406.16858, sections 4.1 and 4.2). Reach never rises along a path and earlier nodes
win ties, so the kept set is always a tree.
"""

from dataclasses import dataclass, field
from typing import ClassVar

from sapwood.core.part import Part, at_least
from sapwood.core.protocols import Estimator, Frontier
from sapwood.core.tree import Tree
from sapwood.core.types import Budget, Prune, TreeShape
from sapwood.core.whole_tree import WholeTreePolicy
from sapwood.estimators.raw import Raw
from sapwood.policies.reach import front, value, worth


@dataclass
class Beam(Part, WholeTreePolicy):
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

    def tree_shape(self, budget: Budget) -> TreeShape | None:
        """The shape for drafters that build whole trees; None if the estimator has no table."""
        table = self.estimator.export_table()
        if table is None or budget.price is not None:
            return None
        return TreeShape(budget.nodes, budget.depth, self.beam, budget.width, table.lines)

    def tree_shapes(self, budget: Budget) -> list[TreeShape]:
        """The one shape that it asks for."""
        shape = self.tree_shape(budget)
        return [] if shape is None else [shape]

    def prune(self, tree: Tree, budget: Budget) -> Tree:
        """The best nodes, as many as the budget allows and the price justifies."""
        value(tree, self.estimator)
        return tree.best(worth(tree, budget))

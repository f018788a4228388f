"""A fixed shape: so many children under every node of each level.

SpecInfer's expansion vector (arXiv 2305.09781). A level that would not fit the budget is not begun.
"""

from dataclasses import dataclass, field
from typing import ClassVar

from sapwood.errors import SapwoodError
from sapwood.part import Part
from sapwood.protocols import Frontier
from sapwood.records import Budget, Prune
from sapwood.tree import Tree


@dataclass
class Static(Part):
    """Expand every node of level i into shape[i] children."""

    shape: list[int] = field(default_factory=lambda: [1, 1, 3, 1, 1, 1, 1, 1])  # children by level, each >= 1

    paper: ClassVar[str] = "2305.09781"
    prunes: ClassVar[Prune] = Prune.GROUPS

    def __post_init__(self) -> None:
        if not self.shape or min(self.shape) < 1:
            raise SapwoodError(f"shape of static must list children per level, each at least 1, not {self.shape}")

    def frontier(self, tree: Tree, budget: Budget) -> Frontier:
        """The whole deepest level, if its children fit."""
        level = tree.height
        if level >= min(len(self.shape), budget.depth):
            return []
        nodes = [node for node in tree.level(level) if not tree.expanded[node]]
        width = min(self.shape[level], budget.width)
        return [(node, width) for node in nodes] if len(tree) - 1 + width * len(nodes) <= budget.nodes else []

    def prune(self, tree: Tree, budget: Budget) -> Tree:
        """Whole levels from below, where drafters that share the tree proposed more than the shape."""
        depth = tree.height
        while (tree.depths[1:] <= depth).sum() > budget.nodes:
            depth -= 1
        return tree if depth == tree.height else tree.keep([n for n in range(len(tree)) if tree.depths[n] <= depth])

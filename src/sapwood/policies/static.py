"""A fixed tree shape: a number of children for all nodes of each level.

SpecInfer's expansion vector (arXiv 2305.09781). A level that would not fit the budget is not begun.
"""

from dataclasses import dataclass, field
from typing import ClassVar

from sapwood.core.part import Part
from sapwood.core.protocols import Frontier
from sapwood.core.tree import Tree
from sapwood.core.types import Budget, Prune
from sapwood.errors import SapwoodError


@dataclass
class Static(Part):
    """Expand every node of level i into shape[i] children."""

    # children by level, each >= 1
    shape: list[int] = field(default_factory=lambda: [1, 1, 3, 1, 1, 1, 1, 1])

    paper: ClassVar[str] = "2305.09781"
    prunes: ClassVar[Prune] = Prune.GROUPS

    def __post_init__(self) -> None:
        if not self.shape or min(self.shape) < 1:
            raise SapwoodError(
                f"shape of static must list children per level, each at least 1, not {self.shape}"
            )

    def frontier(self, tree: Tree, budget: Budget) -> Frontier:
        """The whole deepest level, if its children fit."""
        level = tree.height
        if level >= min(len(self.shape), budget.depth):
            return []
        nodes = [node for node in tree.level(level) if not tree.expanded[node]]
        width = min(self.shape[level], budget.width)
        return (
            [(node, width) for node in nodes]
            if len(tree) - 1 + width * len(nodes) <= budget.nodes
            else []
        )

    def prune(self, tree: Tree, budget: Budget) -> Tree:
        """Drop the deepest levels if drafters that share the tree added more than the budget."""
        return upper_levels(tree, budget.nodes)


def upper_levels(tree: Tree, nodes: int) -> Tree:
    """The first levels of a tree, as many as hold at most `nodes` nodes below the root."""
    depth = tree.height
    while (tree.depths[1:] <= depth).sum() > nodes:
        depth -= 1
    if depth == tree.height:
        return tree
    return tree.keep([node for node in range(len(tree)) if tree.depths[node] <= depth])

"""A single path, as long as the budget's depth.

Speculative sampling's shape (arXiv 2211.17192). Where a drafter proposes several children the first
one is followed and the others are left out; this depends on no token, so it is safe for any draws.
"""

from dataclasses import dataclass
from typing import ClassVar

from sapwood.core.part import Part
from sapwood.core.protocols import Frontier
from sapwood.core.tree import ROOT, Tree
from sapwood.core.types import Budget, Prune


@dataclass
class Chain(Part):
    """One path of first children, to the budget's depth."""

    paper: ClassVar[str] = "2211.17192"
    prunes: ClassVar[Prune] = Prune.GROUPS

    def frontier(self, tree: Tree, budget: Budget) -> Frontier:
        """The end of the path, while it may grow."""
        tip = first_path(tree)[-1]
        if tree.expanded[tip] or tree.depths[tip] >= min(budget.depth, budget.nodes):
            return []
        return [(tip, 1)]

    def prune(self, tree: Tree, budget: Budget) -> Tree:
        """The path alone."""
        path = first_path(tree)
        return tree if len(path) == len(tree) else tree.keep(path)


def first_path(tree: Tree) -> list[int]:
    """The path of first children."""
    path = [ROOT]
    while children := tree.children(path[-1]):
        path.append(children[0])
    return path

"""Fork on every other level: several children, then one child each, and so on.

Many words are several tokens long, and after the first token the others follow. A tree that forks
on each level spends most of its nodes inside such words; one that forks on every other level goes
nearly twice as deep with as many nodes. Levels are grown and pruned whole, whatever their tokens,
so that drafts of every kind keep the target's distribution.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from sapwood.core.part import Part
from sapwood.core.protocols import Frontier
from sapwood.core.tree import Tree
from sapwood.core.types import Budget, Prune
from sapwood.errors import SapwoodError


@dataclass
class Alternate(Part):
    """Fork on every other level, follow single children in between."""

    wide: int = 3  # children of each node on a level that forks, >= 1

    prunes: ClassVar[Prune] = Prune.GROUPS

    def __post_init__(self) -> None:
        if self.wide < 1:
            raise SapwoodError(f"wide of alternate must be at least 1, not {self.wide}")

    def frontier(self, tree: Tree, budget: Budget) -> Frontier:
        """The whole deepest level, if its children fit."""
        level = tree.height
        width = min(1 if level % 2 else self.wide, budget.width)
        nodes = [node for node in tree.level(level) if not tree.expanded[node]]
        fits = len(tree) - 1 + width * len(nodes) <= budget.nodes
        return [(node, width) for node in nodes] if fits and level < budget.depth else []

    def prune(self, tree: Tree, budget: Budget) -> Tree:
        """Drop whole levels from below, if merged drafters proposed more than was asked for."""
        depth = tree.height
        while (tree.depths[1:] <= depth).sum() > budget.nodes:
            depth -= 1
        return tree.keep(np.flatnonzero(tree.depths <= depth).tolist())

"""Keep everything the drafter proposes, in its own order, as far as the budget allows.

For drafters that plan their tree themselves, such as a look-ahead window (arXiv 2402.02057): nodes
are expanded in the order they were added, and what does not fit is pruned from the end. Neither
depends on a token or a probability, so drafts of every kind keep the target's distribution.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from sapwood.core.part import Part
from sapwood.core.protocols import Frontier
from sapwood.core.tree import Tree
from sapwood.core.types import Budget, Prune


@dataclass
class KeepAll(Part):
    """Everything the drafter proposes, in its own order, up to the budget."""

    paper: ClassVar[str] = "2402.02057"
    prunes: ClassVar[Prune] = Prune.GROUPS

    def frontier(self, tree: Tree, budget: Budget) -> Frontier:
        """The first unexpanded nodes, as many as can fill the budget."""
        room = budget.nodes + 1 - len(tree)
        able = np.flatnonzero(~tree.expanded & (tree.depths < budget.depth))[
            : -(-room // budget.width)
        ]
        return [(int(node), budget.width) for node in able] if room > 0 else []

    def prune(self, tree: Tree, budget: Budget) -> Tree:
        """The nodes that were added first: a parent is always added before its children."""
        return tree if len(tree) - 1 <= budget.nodes else tree.keep(range(budget.nodes + 1))

"""Keep all that the drafter proposes, in its own order, as far as the budget goes.

For drafters whose tree is a whole, such as a look-ahead window (arXiv 2402.02057): every node is asked about in
the order in which it came, and what does not fit is cut from the end. Neither looks at a token or a chance,
so drafts of every kind keep the target's law.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from sapwood.part import Part
from sapwood.protocols import Frontier
from sapwood.records import Budget, Prune
from sapwood.tree import Tree


@dataclass
class Whole(Part):
    """All that the drafter proposes, first come first kept."""

    paper: ClassVar[str] = "2402.02057"
    prunes: ClassVar[Prune] = Prune.GROUPS

    def frontier(self, tree: Tree, budget: Budget) -> Frontier:
        """The first nodes that nobody was asked about, as many as can fill the budget."""
        room = budget.nodes + 1 - len(tree)
        able = np.flatnonzero(~tree.expanded & (tree.depths < budget.depth))[: -(-room // budget.width)]
        return [(int(node), budget.width) for node in able] if room > 0 else []

    def prune(self, tree: Tree, budget: Budget) -> Tree:
        """The nodes that came first: a parent always came before its children."""
        return tree if len(tree) - 1 <= budget.nodes else tree.keep(range(budget.nodes + 1))

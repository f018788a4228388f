"""The likeliest path of a beam search: only that path is checked.

MTAD (arXiv 2407.09722) drafts by a beam search of the small model, which approximates the most
likely continuation of several tokens; greedy drafting takes the best token each time instead, and
may miss it. With a beam of one it is greedy drafting by value, as the votes of Minions (arXiv
2402.15678) need it: the path of most votes is checked at the cost of one draft.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from sapwood.core.tree import Tree
from sapwood.core.types import Budget
from sapwood.policies.beam import Beam
from sapwood.policies.reach import value


@dataclass
class BeamPath(Beam):
    """Expand the best leaves of each level; keep the likeliest of the deepest paths."""

    beam: int = 4  # leaves expanded per level, >= 1

    paper: ClassVar[str] = "2407.09722"

    def tree_shape(self, budget: Budget) -> None:
        """None: whole trees are kept by nodes, not by one path."""

    def prune(self, tree: Tree, budget: Budget) -> Tree:
        """The likeliest path to the deepest level that the budget allows."""
        reach = value(tree, self.estimator)
        deepest = min(tree.height, budget.nodes, budget.depth)
        level = tree.level(deepest)
        return tree.keep(tree.path(level[int(np.argmax(reach[level]))]))

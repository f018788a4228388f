"""Grow the tree of largest expected length, level by level, until a level adds too little.

OPT-Tree (arXiv 2406.17276): with the drafter's own probabilities, the expected number of accepted
tokens is the sum of the nodes' path probabilities, so the best tree of n nodes holds the n most
likely ones. Each level is drafted below all nodes that are among the best n so far; drafting ends
when the last level made the sum no more than `gain` larger. The paper drafts n children of n nodes
and throws most away; here a node that is not among the best n, and a rank that cannot be, are not
drafted at all, which changes nothing in the result. `gain` is what a level of drafting must bring
to pay: the paper's 0.5 suits a slow drafter, and the right value is its share of the time in which
a token comes.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from sapwood.core.array_types import FloatArray
from sapwood.core.part import Part, between
from sapwood.core.protocols import Frontier
from sapwood.core.tree import Tree
from sapwood.core.types import Budget, Prune
from sapwood.estimators.raw import Raw
from sapwood.policies.reach import breadth, entry, front, value, worth

RAW = Raw()


@dataclass
class OptTree(Part):
    """Deepen the tree of largest expected length while each level adds enough to it."""

    gain: float = 0.5  # tokens by which the last level must have lengthened the expectation

    paper: ClassVar[str] = "2406.17276"
    prunes: ClassVar[Prune] = Prune.NODES

    def __post_init__(self) -> None:
        between(0, 100, gain=self.gain)

    def frontier(self, tree: Tree, budget: Budget) -> Frontier:
        """The nodes of the deepest level whose children could be among the best."""
        reach = value(tree, RAW)
        height = tree.height
        if height >= budget.depth:
            return []
        found = front(tree, reach, budget.nodes)
        gained = expected(tree, reach, height, budget.nodes) - expected(
            tree, reach, height - 1, budget.nodes
        )
        if height and gained <= max(self.gain, len(found) * budget.draft):
            return []
        least = max(budget.floor, entry(reach, budget.nodes))
        able = [node for node in found if reach[node] > least]
        return [(node, breadth(float(reach[node]), least, budget.width)) for node in able]

    def prune(self, tree: Tree, budget: Budget) -> Tree:
        """The best nodes, as many as the budget allows and the price justifies."""
        value(tree, RAW)
        return tree.best(worth(tree, budget))


def expected(tree: Tree, reach: FloatArray, depth: int, nodes: int) -> float:
    """Expected accepted tokens of the best tree of so many nodes, none deeper than `depth`."""
    return float(np.sort(reach[1:][tree.depths[1:] <= depth])[::-1][:nodes].sum())

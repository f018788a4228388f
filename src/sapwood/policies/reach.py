"""Reach of each node: the product of its estimator's chances along the path."""

import numpy as np

from sapwood.arrays import FloatArray
from sapwood.protocols import Estimator
from sapwood.records import Budget
from sapwood.tree import Tree


def value(tree: Tree, estimator: Estimator) -> FloatArray:
    """Fill in the reach of nodes that have none yet, and return all of it, [n]."""
    if tree.valued < len(tree):
        chances = estimator.chance(tree, tree.valued).tolist()
        parents, reach = tree.parents, tree.reach
        for node, chance in enumerate(chances, tree.valued):
            reach[node] = reach[parents[node]] * min(chance, 1.0)
        tree.valued = len(tree)
    return tree.reach


def leaves(tree: Tree, depth: int) -> list[int]:
    """Nodes that may still be expanded under this depth."""
    found: list[int] = np.flatnonzero(~tree.expanded & (tree.depths < depth)).tolist()
    return found


def worth(tree: Tree, budget: Budget) -> int:
    """How many of the best nodes to check: the most tokens gained over the price of their pass."""
    gain = np.cumsum(np.sort(tree.reach[1:])[::-1][: budget.nodes])
    if budget.price is None or not len(gain):
        return len(gain)
    profit = np.append(0.0, gain - (budget.price[1 : len(gain) + 1] - budget.price[0]))
    return int(np.argmax(profit))  # a staircase has many local optima: look at all of them

"""Reach of each node: the product of its estimator's chances along the path."""

from itertools import accumulate

import numpy as np

from sapwood.core.array_types import FloatArray
from sapwood.core.protocols import Estimator
from sapwood.core.tree import Tree
from sapwood.core.types import Budget


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


def front(tree: Tree, reach: FloatArray, most: int) -> list[int]:
    """The best unexpanded nodes of the deepest level, best first."""
    level = [node for node in tree.level(tree.height) if not tree.expanded[node]]
    return sorted(level, key=lambda node: -reach[node])[:most]


def entry(reach: FloatArray, nodes: int) -> float:
    """Reach that a further node must exceed to be among the best `nodes`; 0 while there is room."""
    return float(np.partition(reach[1:], -nodes)[-nodes]) if len(reach) > nodes else 0.0


def ready(tree: Tree, reach: FloatArray, budget: Budget, stride: int, least: float) -> list[int]:
    """The best leaves, at most `stride`, whose children could enter the tree above `least`."""
    least = max(least, entry(reach, budget.nodes))
    able = [node for node in leaves(tree, budget.depth) if reach[node] > least]
    return sorted(able, key=lambda node: -reach[node])[:stride]


def breadth(reach: float, least: float, most: int) -> int:
    """Number of children that could have `least`: the n-th best has at most `reach` / n."""
    return most if reach >= least * most else int(reach / least)


def worth(tree: Tree, budget: Budget) -> int:
    """Number of best nodes to check, by the most tokens gained over the price of their pass."""
    # a list: faster than numpy for small trees
    reach = sorted(tree.reach[1:].tolist(), reverse=True)[: budget.nodes]
    if budget.price is None or not reach:
        return len(reach)
    base, *prices = budget.price[: len(reach) + 1].tolist()
    profit = [
        0.0,
        *(gain - (price - base) for gain, price in zip(accumulate(reach), prices, strict=True)),
    ]
    return profit.index(max(profit))  # a stepwise price has many local optima: compare all sizes

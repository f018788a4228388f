"""Token trees as llama.cpp sequences: one per leaf; a node is in those of the leaves below it.

A sequence of llama.cpp is a set of cells, and a row sees the cells that share its first sequence
and do not lie behind it. So the nodes that a leaf's sequence holds must be its own path and no
others.
"""

from collections.abc import Sequence
from dataclasses import dataclass

COMMITTED = -1  # stands for the last committed token, from which every tree grows


@dataclass(frozen=True, slots=True)
class Branch:
    """A leaf, and the last node of its path that was scored before."""

    leaf: int
    stem: int  # COMMITTED if no node of the path was scored before


def branches(parents: Sequence[int], since: int) -> tuple[list[Branch], list[list[int]]]:
    """Branches of the nodes from `since` on, and for each of these nodes its branches."""
    inner = set(parents[since:])
    found: list[Branch] = []
    through: list[list[int]] = [[] for _ in parents[since:]]
    for leaf in range(since, len(parents)):
        if leaf in inner:
            continue
        node = leaf
        while node >= since:
            through[node - since].append(len(found))
            node = parents[node]
        found.append(Branch(leaf, node))
    return found, through


def by_branch(parents: Sequence[int], since: int) -> list[int]:
    """Nodes from `since` on, each followed by all below it, first children first.

    Drafters put their best token first, so accepted nodes are mostly neighbours in this order.
    """
    below: dict[int, list[int]] = {}
    for node in range(len(parents) - 1, since - 1, -1):
        below.setdefault(parents[node], []).append(node)
    waiting = sorted(
        (node for parent in below if parent < since for node in below[parent]), reverse=True
    )
    order: list[int] = []
    while waiting:
        order.append(waiting.pop())
        waiting += below.get(order[-1], ())
    return order

"""Random token trees: of any shape from a seed, and as a strategy for hypothesis."""

import numpy as np
from hypothesis import strategies as st

from sapwood.core.tree import Tree

COLUMNS = ("tokens", "ranks", "sources", "probs", "reach", "sampled", "expanded")


@st.composite
def tree_strategy(draw: st.DrawFn, most: int = 40) -> Tree:
    """A random tree with every column filled; reach falls, or stays, along each path."""
    tree = Tree(draw(st.integers(0, 9)), capacity=draw(st.integers(1, 8)))
    for _ in range(draw(st.integers(0, most))):
        tree.add(
            draw(st.integers(0, len(tree) - 1)),
            draw(st.integers(0, 9)),
            draw(st.floats(0, 1)),
            rank=draw(st.integers(0, 3)),
            source=draw(st.integers(0, 3)),
            sampled=draw(st.booleans()),
        )
    for node in range(1, len(tree)):
        tree.reach[node] = tree.reach[tree.parents[node]] * draw(st.sampled_from([0.25, 0.5, 1.0]))
        if draw(st.booleans()):
            tree.close(node)
    tree.valued = len(tree)
    tree.proposals = {
        (node, 0): np.full(3, float(node)) for node in range(len(tree)) if tree.children(node)
    }
    return tree


def random_tree(nodes: int, seed: int = 0) -> Tree:
    """A tree of any shape."""
    rng = np.random.default_rng(seed)
    tree = Tree(5)
    while len(tree) < nodes:
        tree.add(int(rng.integers(len(tree))), int(rng.integers(1, 60)), 0.5)
    return tree

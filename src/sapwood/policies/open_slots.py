"""Places for one more child, valued by what is known before the child is drawn.

The siblings of a node are tested in turn, so that the place of one is reached where its parent is
and all before it are refused. With q as the estimate of the target's probs, that chance is the
parent's times what the earlier siblings leave of q. It depends on no token that is still to be
drawn, so it may decide whether a place is filled without changing the distribution of what is drawn
there.
"""

import numpy as np

from sapwood.core.array_types import FloatArray
from sapwood.core.tree import Tree


def places(tree: Tree) -> tuple[FloatArray, FloatArray]:
    """Chance that each node's place is reached, and that the text goes through the node, [n] both.

    A chosen node is known beforehand: its place is worth what the node itself is.
    """
    place = np.ones(len(tree))
    through = np.ones(len(tree))
    left = np.ones(len(tree))
    parents = tree.parents.tolist()
    probs = tree.probs.tolist()
    sampled = tree.sampled.tolist()
    for node in range(1, len(tree)):
        above = parents[node]
        # a drawn node's probability is conditional on its earlier siblings being refused; a chosen
        # one's is q's own
        found = (
            left[above] * probs[node]
            if sampled[node]
            else min(through[above] * probs[node], left[above])
        )
        place[node] = left[above] if sampled[node] else found
        left[above] = max(left[above] - found, 0.0)
        through[node] = left[node] = found
    return place, through


def families(tree: Tree) -> list[list[int]]:
    """Children of each node, in the order they were added."""
    found: list[list[int]] = [[] for _ in range(len(tree))]
    for node, parent in enumerate(tree.parents.tolist()[1:], 1):
        found[parent].append(node)
    return found

"""Places for one more child, valued by what is known before the child is drawn.

The siblings of a node are tested in turn, so that the place of one is reached where its parent is and
all before it are refused. With q as the measure of the target's own law that chance is
the parent's times what the earlier siblings leave of q. It looks at no token that is still to be drawn, and
so it may decide whether a place is filled without harm to the law of what is drawn there.
"""

import numpy as np

from sapwood.arrays import FloatArray
from sapwood.tree import Tree


def places(tree: Tree) -> tuple[FloatArray, FloatArray]:
    """Chance that each node's place is reached, and that the text goes through the node, [n] both.

    A chosen node is known beforehand: its place is worth what the node itself is.
    """
    place, through, left = np.ones(len(tree)), np.ones(len(tree)), np.ones(len(tree))
    parents, probs, sampled = tree.parents.tolist(), tree.probs.tolist(), tree.sampled.tolist()
    for node in range(1, len(tree)):
        above = parents[node]
        # a drawn node's probability is that of its turn, given that the earlier ones are out; a chosen one's is q's own
        found = left[above] * probs[node] if sampled[node] else min(through[above] * probs[node], left[above])
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

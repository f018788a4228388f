"""What drafters share that guess by the target's own answers at refused positions."""

from collections.abc import Sequence

import numpy as np

from sapwood.rng import Keyed, Place
from sapwood.tree import Tree

STRAY = 5  # use of a place: a token that stands where the target has not answered yet


def along(tree: Tree, node: int, tokens: Sequence[int]) -> list[int]:
    """The node and those that spell these tokens below it, as far as the tree holds them."""
    nodes = [node]
    for token in tokens:
        child = tree.child(nodes[-1], token)
        if child is None:
            break
        nodes.append(child)
    return nodes


def lay(tree: Tree, node: int, tokens: Sequence[int], chance: float) -> list[int]:
    """Add a row of tokens below a node, along what is there already, and return their nodes."""
    nodes = []
    for token in tokens:
        twin = tree.child(node, token)
        node = tree.add(node, token, chance) if twin is None else twin
        nodes.append(node)
    return nodes


def strays(text: Sequence[int], position: int, count: int) -> list[int]:
    """Tokens of a text, picked by noise of the positions they are to stand at."""
    law, noise = np.full(len(text), 1 / len(text)), Keyed(0)
    return [text[noise.pick(law, Place(position + step, STRAY))] for step in range(count)]

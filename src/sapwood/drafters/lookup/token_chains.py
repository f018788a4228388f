"""Chains of tokens in trees, for drafters that use the target's outputs at rejected positions."""

from collections.abc import Sequence

import numpy as np

from sapwood.core.rng import KeyedRng, NoiseKey
from sapwood.core.tree import Tree

RANDOM = 5  # noise use: a token at a position that has no output so far


def find_chain(tree: Tree, node: int, tokens: Sequence[int]) -> list[int]:
    """The node and those that spell these tokens below it, as far as the tree holds them."""
    nodes = [node]
    for token in tokens:
        child = tree.child(nodes[-1], token)
        if child is None:
            break
        nodes.append(child)
    return nodes


def add_chain(tree: Tree, node: int, tokens: Sequence[int], chance: float) -> list[int]:
    """Add a chain of tokens below a node, sharing nodes already there; return its nodes."""
    nodes = []
    for token in tokens:
        twin = tree.child(node, token)
        node = tree.add(node, token, chance) if twin is None else twin
        nodes.append(node)
    return nodes


def random_tokens(text: Sequence[int], position: int, count: int) -> list[int]:
    """Random tokens of a text for `count` positions; the same position gives the same token."""
    probs = np.full(len(text), 1 / len(text))
    noise = KeyedRng(0)
    return [text[noise.pick(probs, NoiseKey(position + step, RANDOM))] for step in range(count)]

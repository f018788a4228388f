"""Recorded rounds of hand-made trees."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from sapwood.core.array_types import IntArray
from sapwood.core.tree import Tree
from sapwood.train.rounds import RecordedRounds


def chain(*probs: float) -> Tree:
    """A path of nodes with these draft probabilities; node n carries token n."""
    tree = Tree(0)
    for node, prob in enumerate(probs):
        tree.add(node, node + 1, prob)
    return tree


def recorded(
    trees: Sequence[Tree], labels: Sequence[Sequence[int]], **columns: Any
) -> RecordedRounds:
    """One round of each tree, five rounds to a prompt; a pass takes a second, a level a tenth."""
    count = len(trees)
    nodes = np.array([len(tree) - 1 for tree in trees], np.int64)
    joined: IntArray = np.array([label for each in labels for label in each], np.int64)
    base: dict[str, Any] = {
        "prompt": np.arange(count) // 5,
        "context": np.full(count, 10),
        "accepted": np.array([sum(label == 1 for label in each) for each in labels], np.int64),
        "root": np.zeros(count, np.int64),
        "draft": np.array([0.1 * tree.height for tree in trees]),
        "verify": np.full(count, 1.0),
        "nodes": nodes,
        "kept": np.zeros(count, np.int64),
        "before": np.empty((count, 0), np.float16),
        "tokens": np.concatenate([np.empty(0, np.int64), *(tree.tokens[1:] for tree in trees)]),
        "parents": np.concatenate([np.empty(0, np.int64), *(tree.parents[1:] for tree in trees)]),
        "probs": np.concatenate([np.empty(0), *(tree.probs[1:] for tree in trees)]),
        "labels": joined,
        "tried": np.ones(len(joined), bool),
        "owners": np.empty(0, np.int64),
        "states": np.empty((0, 0), np.float16),
    }
    return RecordedRounds(**(base | columns))

"""Made-up recordings of rounds to fit predictors on."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from sapwood.core.array_types import IntArray
from sapwood.core.tree import ROOT, Tree
from sapwood.policies.ltd import RAW
from sapwood.policies.reach import value
from sapwood.train.rounds import RecordedRounds


def made(trees: Sequence[Tree], labels: Sequence[Sequence[int]], **columns: Any) -> RecordedRounds:
    """A recording of these trees; ten rounds to a prompt."""
    count = len(trees)
    nodes = np.array([len(tree) - 1 for tree in trees])
    joined: IntArray = np.concatenate([np.asarray(each, np.int64) for each in labels])
    base: dict[str, Any] = {
        "prompt": np.arange(count) // 10,
        "context": np.full(count, 100),
        "accepted": np.array([sum(label == 1 for label in each) for each in labels]),
        "root": np.zeros(count, np.int64),
        "draft": 0.01 * nodes,
        "verify": np.full(count, 1.0),
        "nodes": nodes,
        "kept": np.zeros(count, np.int64),
        "before": np.empty((count, 0), np.float16),
        "tokens": np.concatenate([tree.tokens[1:] for tree in trees]),
        "parents": np.concatenate([tree.parents[1:] for tree in trees]),
        "probs": np.concatenate([tree.probs[1:] for tree in trees]),
        "labels": joined,
        "tried": np.ones(len(joined), bool),
        "owners": np.empty(0, np.int64),
        "states": np.empty((0, 0), np.float16),
    }
    return RecordedRounds(**(base | columns))


def line(probs: Sequence[float]) -> Tree:
    tree = Tree(0)
    for node, prob in enumerate(probs):
        tree.add(node, node + 1, prob)
    return tree


def run_of(accepted: int, length: int) -> list[int]:
    return [int(place < accepted) for place in range(length)]


def bushy(noise: np.random.Generator, sure: bool) -> tuple[Tree, list[int]]:
    """A tree of two children per kept node, and which of them the target says."""
    tree = Tree(0)
    hit = [True]
    q = 0.9 if sure else 0.35
    front = [ROOT]
    for _ in range(6):
        grown = []
        for parent in front:
            grown += tree.extend(parent, [1, 2], [q, 0.3 * (1 - q)])
            first = noise.random() < q
            hit += [hit[parent] and first, hit[parent] and not first and noise.random() < 0.3]
        front = sorted(grown, key=lambda node: -value(tree, RAW)[node])[:2]
    return tree, [int(one) for one in hit[1:]]


def changing(noise: np.random.Generator, count: int = 400) -> RecordedRounds:
    made_up = [bushy(noise, bool(noise.random() < 0.5)) for _ in range(count)]
    return made(
        [tree for tree, _ in made_up],
        [labels for _, labels in made_up],
        draft=np.full(count, 6 * 0.15),
    )

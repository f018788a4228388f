"""Rows behind nodes of a tree that stand for later tokens: scored with it, never committed.

A drafter with rows of its own in the verifying pass names them behind the nodes of its tree. The
backend runs them in the same pass, with embeddings and adapters that the nodes do not see: a row
sees the text, the path to its node and the rows before it behind the same node. Whatever rows there
are, the nodes keep their output.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from sapwood.core.array_types import IntArray
from sapwood.core.tree import Tree


@dataclass(frozen=True)
class LookaheadRows:
    """Rows behind nodes of a tree, all rows of a node in order and side by side."""

    model: Any  # as the backend's `lookahead` has made it
    vocab: int  # ids of the rows begin here
    counts: Sequence[int]  # [nodes] rows behind each node

    def __len__(self) -> int:
        """Number of rows."""
        return int(self.starts[-1])

    @cached_property
    def starts(self) -> IntArray:
        """Index of the first row of each node, and of the end, [nodes + 1]."""
        found: IntArray = np.concatenate(([0], np.cumsum(self.counts))).astype(np.int64)
        return found

    @cached_property
    def anchors(self) -> IntArray:
        """Node of each row, [rows]."""
        found: IntArray = np.repeat(np.arange(len(self.counts)), self.counts)
        return found

    def behind(self, node: int) -> range:
        """Rows behind a node."""
        return range(int(self.starts[node]), int(self.starts[node + 1]))

    def added_to(self, tree: Tree) -> Tree:
        """The tree with its rows as further nodes, each behind the one before it."""
        if len(self.counts) != len(tree):
            raise ValueError(f"look-ahead rows of {len(self.counts)} nodes, not of {len(tree)}")
        nodes = len(tree)
        places = np.arange(len(self)) - self.starts[:-1][self.anchors]
        parents = np.where(places == 0, self.anchors, nodes + np.arange(len(self)) - 1)
        return Tree.from_columns(
            np.concatenate((tree.tokens, self.vocab + places)),
            np.concatenate((tree.parents, parents)),
            np.concatenate((tree.depths, tree.depths[self.anchors] + 1 + places)),
            np.ones(nodes + len(self)),
        )


@dataclass
class RowGate:
    """The look-ahead rows of the pass that runs, for the adapters of their layers."""

    rows: Any = None  # indices on the device, [rows]; None: the pass has none
    anchors: Any = None  # index of the node of each, [rows]


@dataclass(frozen=True, slots=True)
class LookaheadModel:
    """The target's model with weights for look-ahead rows, which the nodes do not use."""

    model: Any
    gate: RowGate

"""Acceptance by depth and rank, counted while decoding (ProPD, arXiv 2402.13485).

ProPD values a node by how often the token of this rank, of the head for this depth, was the right
one, whatever the head's own probability says. A place of few counts leans on that probability.
Nodes that were drafted but not checked count too where the target's next token is known.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from sapwood.core.array_types import FloatArray, IntArray
from sapwood.core.part import Part, between
from sapwood.core.protocols import EngineContext
from sapwood.core.tree import Tree
from sapwood.core.types import AcceptanceTable, Outcome

DEPTHS, RANKS = 16, 32  # places with counts of their own; deeper nodes share the last


@dataclass
class Ranked(Part):
    """Acceptance counted by depth and rank among siblings, as ProPD counts it."""

    prior: float = 4.0  # trials that the drafter's own probability is worth
    memory: float = 2000.0  # trials after which the counts of a place are halved

    paper: ClassVar[str] = "2402.13485"

    def __post_init__(self) -> None:
        between(1e-9, 1e6, prior=self.prior)
        between(0, 1e9, memory=self.memory)

    def bind(self, setting: EngineContext) -> None:
        """Start counting; the counts are shared by all requests."""
        self.hits: FloatArray = np.zeros((DEPTHS, RANKS))
        self.trials: FloatArray = np.zeros((DEPTHS, RANKS))

    def chance(self, tree: Tree, start: int) -> FloatArray:
        """Counted acceptance of each node from `start` on."""
        where = places(tree, slice(start, None))
        found: FloatArray = (self.hits[where] + self.prior * tree.probs[start:]) / (
            self.trials[where] + self.prior
        )
        return found

    def export_table(self) -> AcceptanceTable | None:
        """None: its places are not those of compiled code."""
        return None

    def observe(self, outcome: Outcome) -> None:
        """Count every drafted child of an accepted node, checked or not."""
        if len(outcome.grown) == 1:
            return
        hit, tried = outcome.verified_nodes()
        nodes = np.flatnonzero(tried)
        where = places(outcome.grown, nodes)
        np.add.at(self.trials, where, 1.0)
        np.add.at(self.hits, where, hit[nodes])
        full = self.trials > self.memory
        self.trials[full] /= 2
        self.hits[full] /= 2


def places(tree: Tree, nodes: slice | IntArray) -> tuple[IntArray, IntArray]:
    """Depth and rank of these nodes as places in the counts."""
    depths = np.minimum(tree.depths[nodes], DEPTHS) - 1
    return depths, np.minimum(tree.ranks[nodes], RANKS - 1)

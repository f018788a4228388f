"""Acceptance by source, rank, depth and confidence, counted while decoding.

Drafters are badly calibrated in ways that matter for trees: at temperature 0 a first choice is
accepted more often than its probability says, and a second choice less. Each cell of the table
counts how often nodes like this one were accepted once their parent was; a cell of few counts backs
off to the coarser one of its source and confidence, and that to the drafter's own probability.
Nodes that were drafted but not checked count too where the target's next token is known.
"""

from dataclasses import dataclass

import numpy as np

from sapwood.core.array_types import FloatArray, IntArray
from sapwood.core.part import Part, between
from sapwood.core.protocols import EngineContext
from sapwood.core.tree import CAPACITY, Tree
from sapwood.core.types import AcceptanceCounts, AcceptanceTable, Outcome

EDGES = np.array([0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.97])  # of the confidence bins
SOURCES = 16  # sets of drafters
RANKS = 6  # ranks among siblings
DEPTHS = 5  # depth bands, each twice as deep as the one before
# [depth] band of each depth
BANDS = np.array([min(max(depth, 1).bit_length(), DEPTHS) - 1 for depth in range(CAPACITY)])


@dataclass
class Binned(Part):
    """Acceptance counted by source, rank, depth and confidence, with back-off for few counts."""

    coarse: float = 4.0  # trials that the drafter's own probability is worth
    fine: float = 8.0  # trials that the coarse cell is worth
    memory: float = 2000.0  # trials after which the counts of a cell are halved

    def __post_init__(self) -> None:
        between(1e-9, 1e6, coarse=self.coarse, fine=self.fine)
        between(0, 1e9, memory=self.memory)

    def bind(self, setting: EngineContext) -> None:
        """Start counting; the counts are shared by all requests."""
        shape = (SOURCES, len(EDGES) + 1, RANKS, DEPTHS)
        self.hits: FloatArray = np.zeros(shape)
        self.trials: FloatArray = np.zeros(shape)
        # source -> its lines, updated after each round
        self.ready: dict[int, FloatArray] = {}

    def chance(self, tree: Tree, start: int) -> FloatArray:
        """Counted acceptance of each node from `start` on."""
        raw, (source, confidence, rank, depth) = tree.probs[start:], cells(tree, slice(start, None))
        # [n, ranks, depths]
        hits = self.hits[source, confidence]
        trials = self.trials[source, confidence]
        rough = (hits.sum((1, 2)) + self.coarse * raw) / (trials.sum((1, 2)) + self.coarse)
        each = np.arange(len(raw))
        exact: FloatArray = (hits[each, rank, depth] + self.fine * rough) / (
            trials[each, rank, depth] + self.fine
        )
        return exact

    def export_table(self) -> AcceptanceTable:
        """The counts, and the lines fitted to them."""
        counts = AcceptanceCounts(EDGES, self.hits, self.trials, self.coarse, self.fine)
        return AcceptanceTable(self.lines, counts)

    def lines(self, source: int) -> FloatArray:
        """Estimates for nodes of one drafter alone, [confidence * rank * depth, 2].

        The chance of a node is a + b * confidence, with (a, b) of its cell.
        """
        if source not in self.ready:
            self.ready[source] = self._fit(source)
        return self.ready[source]

    def _fit(self, source: int) -> FloatArray:
        """The lines of a drafter, from all counts so far."""
        place = (1 << source) % SOURCES
        shape = (len(EDGES) + 1, RANKS * DEPTHS)
        hits, trials = self.hits[place].reshape(shape), self.trials[place].reshape(shape)
        total = trials.sum(1, keepdims=True) + self.coarse
        each = trials + self.fine
        found = np.empty((*shape, 2))
        found[..., 0] = (hits + hits.sum(1, keepdims=True) * (self.fine / total)) / each
        found[..., 1] = (self.fine * self.coarse / total) / each
        return found.reshape(-1, 2)

    def observe(self, outcome: Outcome) -> None:
        """Count every drafted child of an accepted node, checked or not."""
        if len(outcome.grown) == 1:
            return
        hit, tried = outcome.verified_nodes()
        nodes = np.flatnonzero(tried)
        where = cells(outcome.grown, nodes)
        np.add.at(self.trials, where, 1.0)
        np.add.at(self.hits, where, hit[nodes])
        if self.trials[where].max(initial=0.0) > self.memory:
            full = self.trials > self.memory
            self.trials[full] /= 2
            self.hits[full] /= 2
        self.ready.update({source: self._fit(source) for source in self.ready})


def cells(tree: Tree, nodes: slice | IntArray) -> tuple[IntArray, IntArray, IntArray, IntArray]:
    """The table cell of each of these nodes: source, confidence, rank, depth."""
    return (
        tree.sources[nodes] & (SOURCES - 1),
        EDGES.searchsorted(tree.probs[nodes]),
        np.minimum(tree.ranks[nodes], RANKS - 1),
        BANDS[tree.depths[nodes]],
    )

"""Acceptance by source, rank, depth and confidence, counted while decoding.

Drafters are badly calibrated in ways that matter for trees: at temperature 0 a first choice is
accepted more often than its probability says, and a second choice less. Each cell of the table
counts how often nodes like this one were accepted once their parent was; a thin cell leans on the
coarser one of its source and confidence, and that on the drafter's own probability. Nodes that were
drafted but not checked count too where the target's next token shows what it would have said.
"""

from dataclasses import dataclass

import numpy as np

from sapwood.arrays import FloatArray, IntArray
from sapwood.part import Part, between
from sapwood.protocols import Setting
from sapwood.records import Counts, Outcome
from sapwood.tree import CAPACITY, Tree

EDGES = np.array([0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.97])  # of the confidence bins
SOURCES, RANKS, DEPTHS = 16, 6, 5  # sets of drafters, places among siblings, doubling depth bands
BANDS = np.array([min(max(depth, 1).bit_length(), DEPTHS) - 1 for depth in range(CAPACITY)])  # by depth


@dataclass
class Binned(Part):
    """Count acceptance by source, rank, depth and confidence, and back off where counts are thin."""

    coarse: float = 4.0  # how many trials the drafter's own probability is worth
    fine: float = 8.0  # how many trials the coarse cell is worth
    memory: float = 2000.0  # trials after which a cell begins to forget

    def __post_init__(self) -> None:
        between(1e-9, 1e6, coarse=self.coarse, fine=self.fine)
        between(0, 1e9, memory=self.memory)

    def bind(self, setting: Setting) -> None:
        """Start counting; the counts are shared by all requests."""
        shape = (SOURCES, len(EDGES) + 1, RANKS, DEPTHS)
        self.hits, self.trials = np.zeros(shape), np.zeros(shape)
        self.ready: dict[int, FloatArray] = {}  # source -> its lines, made before they are asked for

    def chance(self, tree: Tree, start: int) -> FloatArray:
        """Counted acceptance of each node from `start` on."""
        raw, (source, confidence, rank, depth) = tree.probs[start:], cells(tree, slice(start, None))
        hits, trials = self.hits[source, confidence], self.trials[source, confidence]  # [n, ranks, depths]
        rough = (hits.sum((1, 2)) + self.coarse * raw) / (trials.sum((1, 2)) + self.coarse)
        each = np.arange(len(raw))
        exact: FloatArray = (hits[each, rank, depth] + self.fine * rough) / (trials[each, rank, depth] + self.fine)
        return exact

    @property
    def counts(self) -> Counts:
        """What chances are made of, for growth that values nodes elsewhere."""
        return Counts(EDGES, self.hits, self.trials, self.coarse, self.fine)

    def lines(self, source: int) -> FloatArray:
        """The same for nodes of one drafter alone: chance = a + b * confidence, [confidence * rank * depth, 2]."""
        if source not in self.ready:
            self.ready[source] = self._fit(source)
        return self.ready[source]

    def _fit(self, source: int) -> FloatArray:
        """The lines of a drafter, from all counts so far."""
        place, shape = (1 << source) % SOURCES, (len(EDGES) + 1, RANKS * DEPTHS)
        hits, trials = self.hits[place].reshape(shape), self.trials[place].reshape(shape)
        total, each = trials.sum(1, keepdims=True) + self.coarse, trials + self.fine
        found = np.empty((*shape, 2))
        found[..., 0] = (hits + hits.sum(1, keepdims=True) * (self.fine / total)) / each
        found[..., 1] = (self.fine * self.coarse / total) / each
        return found.reshape(-1, 2)

    def observe(self, outcome: Outcome) -> None:
        """Count every drafted child of an accepted node, checked or not."""
        if len(outcome.grown) == 1:
            return
        hit, tried = judged(outcome)
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


def judged(outcome: Outcome) -> tuple[np.ndarray, np.ndarray]:
    """For each drafted node: was its token the target's, and was it put to the question at all, [n] each."""
    grown, tree, verdict = outcome.grown, outcome.tree, outcome.verdict
    path = np.array(verdict.path) if tree.kept is None else tree.kept[list(verdict.path)]
    hit = np.zeros(len(grown), bool)
    hit[path] = True
    tried = hit[grown.parents]
    tried[0] = False  # the root was not drafted
    hit |= (grown.parents == path[-1]) & (grown.tokens == verdict.bonus)
    return hit, tried

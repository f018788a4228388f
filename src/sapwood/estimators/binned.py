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
from sapwood.records import Outcome
from sapwood.tree import Tree

EDGES = np.array([0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.97])  # of the confidence bins
SOURCES, RANKS, DEPTHS = 16, 6, 5  # sets of drafters, places among siblings, doubling depth bands


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

    def chance(self, tree: Tree, start: int) -> FloatArray:
        """Counted acceptance of each node from `start` on."""
        raw, (source, confidence, rank, depth) = tree.probs[start:], cells(tree, start)
        hits, trials = self.hits[source, confidence], self.trials[source, confidence]  # [n, ranks, depths]
        rough = (hits.sum((1, 2)) + self.coarse * raw) / (trials.sum((1, 2)) + self.coarse)
        each = np.arange(len(raw))
        exact: FloatArray = (hits[each, rank, depth] + self.fine * rough) / (trials[each, rank, depth] + self.fine)
        return exact

    def observe(self, outcome: Outcome) -> None:
        """Count every drafted child of an accepted node, checked or not."""
        grown, hit, tried = outcome.grown, *judged(outcome)
        where = tuple(column[tried[1:]] for column in cells(grown, 1))
        np.add.at(self.trials, where, 1.0)
        np.add.at(self.hits, where, hit[tried].astype(float))
        full = self.trials > self.memory
        self.trials[full] /= 2
        self.hits[full] /= 2


def cells(tree: Tree, start: int) -> tuple[IntArray, IntArray, IntArray, IntArray]:
    """The table cell of each node from `start` on: source, confidence, rank, depth."""
    depth = np.minimum(np.log2(np.maximum(tree.depths[start:], 1)).astype(np.int64), DEPTHS - 1)
    return (
        tree.sources[start:] % SOURCES,
        np.searchsorted(EDGES, tree.probs[start:]),
        np.minimum(tree.ranks[start:], RANKS - 1),
        depth,
    )


def judged(outcome: Outcome) -> tuple[np.ndarray, np.ndarray]:
    """For each drafted node: was its token the target's, and was it put to the question at all, [n] each."""
    grown, tree, verdict = outcome.grown, outcome.tree, outcome.verdict
    path = np.array(verdict.path) if tree.kept is None else tree.kept[list(verdict.path)]
    tried = np.isin(grown.parents, path)
    hit = np.isin(np.arange(len(grown)), path)
    hit |= (grown.parents == path[-1]) & (grown.tokens == verdict.bonus)
    return hit, tried

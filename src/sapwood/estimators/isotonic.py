"""Acceptance as a rising function of confidence, for each set of drafters and rank.

Isotonic regression: a more confident drafter should be right more often, and nothing else is
assumed. Trials are kept on a fine grid of confidences and decay as newer ones come; neighbours that
fall where they should rise are pooled until none do (the pool-adjacent-violators solution, here by
its closed form, the largest over left ends of the smallest over right ends of the mean in between).
The drafter's own probability is worth a few trials at every place of the grid, and chances between
two places lie on the line that joins them.
"""

from dataclasses import dataclass

import numpy as np

from sapwood.core.array_types import FloatArray, IntArray
from sapwood.core.part import Part, between
from sapwood.core.protocols import EngineContext
from sapwood.core.tree import Tree
from sapwood.core.types import Outcome
from sapwood.estimators.binned import RANKS, SOURCES

GRID = 1.0 / (1.0 + np.exp(-np.linspace(-5.0, 5.0, 21)))  # confidences, evenly spread in log odds


@dataclass
class Isotonic(Part):
    """Acceptance as a rising function of confidence, by source and rank, from decayed counts."""

    trust: float = 2.0  # trials that the drafter's own probability is worth at each confidence
    memory: float = 2000.0  # trials of a source and rank after which old ones decay

    def __post_init__(self) -> None:
        between(1e-9, 1e6, trust=self.trust)
        between(1e-3, 1e9, memory=self.memory)

    def bind(self, setting: EngineContext) -> None:
        """Start counting; the counts are shared by all requests."""
        shape = (SOURCES, RANKS, len(GRID))
        self.hits, self.trials = np.zeros(shape), np.zeros(shape)
        self.curves = np.broadcast_to(GRID, shape).copy()  # chance at each confidence of the grid
        self.stale = np.zeros(shape[:2], bool)  # counted since its curve was made

    def chance(self, tree: Tree, start: int) -> FloatArray:
        """Chance of each node from `start` on."""
        self._refit()
        source, rank = groups(tree, np.arange(start, len(tree)))
        left, share = places(tree.probs[start:])
        low, high = self.curves[source, rank, left], self.curves[source, rank, left + 1]
        found: FloatArray = low + share * (high - low)
        return found

    def observe(self, outcome: Outcome) -> None:
        """Count every drafted child of an accepted node at its two neighbours on the grid."""
        if len(outcome.grown) == 1:
            return
        hit, tried = outcome.verified_nodes()
        nodes = np.flatnonzero(tried)
        source, rank = groups(outcome.grown, nodes)
        left, share = places(outcome.grown.probs[nodes])
        for spot, weight in ((left, 1.0 - share), (left + 1, share)):
            np.add.at(self.trials, (source, rank, spot), weight)
            np.add.at(self.hits, (source, rank, spot), weight * hit[nodes])
        self.stale[source, rank] = True
        total = self.trials.sum(2, keepdims=True)
        if total.max() > self.memory:
            fade = self.memory / np.maximum(total, self.memory)
            self.trials *= fade
            self.hits *= fade

    def _refit(self) -> None:
        """Fit the curves whose counts have changed."""
        if self.stale.any():
            where = np.nonzero(self.stale)
            weights = self.trials[where] + self.trust
            self.curves[where] = rising((self.hits[where] + self.trust * GRID) / weights, weights)
            self.stale[:] = False


def groups(tree: Tree, nodes: IntArray) -> tuple[IntArray, IntArray]:
    """The set of drafters and the rank of each of these nodes."""
    return tree.sources[nodes] % SOURCES, np.minimum(tree.ranks[nodes], RANKS - 1)


def places(probs: FloatArray) -> tuple[IntArray, FloatArray]:
    """The grid index left of each confidence, and its distance toward the next, 0 to 1."""
    probs = np.clip(probs, GRID[0], GRID[-1])
    left = np.clip(np.searchsorted(GRID, probs, side="right") - 1, 0, len(GRID) - 2)
    return left, (probs - GRID[left]) / (GRID[left + 1] - GRID[left])


def rising(values: FloatArray, weights: FloatArray) -> FloatArray:
    """The rising sequences nearest to these by weighted squares, [..., n]."""
    size = values.shape[-1]
    zero = np.zeros((*values.shape[:-1], 1))
    sums = np.concatenate((zero, np.cumsum(values * weights, -1)), -1)
    totals = np.concatenate((zero, np.cumsum(weights, -1)), -1)
    ordered = np.triu(np.ones((size, size), bool))  # left end, right end
    width = np.where(ordered, totals[..., None, 1:] - totals[..., :-1, None], 1.0)
    means = np.where(ordered, (sums[..., None, 1:] - sums[..., :-1, None]) / width, np.inf)
    # over right ends from each place on
    least = np.minimum.accumulate(means[..., ::-1], -1)[..., ::-1]
    found: FloatArray = np.where(ordered, least, -np.inf).max(-2)
    return found

"""Acceptance by online logistic regression on confidence, rank and depth, per set of drafters.

The log odds of acceptance are a line in the drafter's own log odds and log probability, with one
step per rank and a slope in the logarithm of depth; at the start they are the drafter's own. Each
round makes one Newton step: the weights move by the round's error, scaled by the inverse of the
information gathered so far, which decays slowly so that they keep following the text. A few weights
learn fast, where a table of counts has to fill every cell; effects that are not linear in these
features cannot be learned.
"""

from dataclasses import dataclass

import numpy as np

from sapwood.core.array_types import FloatArray, IntArray
from sapwood.core.part import Part, between
from sapwood.core.protocols import EngineContext
from sapwood.core.tree import Tree
from sapwood.core.types import Outcome
from sapwood.estimators.binned import RANKS, SOURCES

TINY = 1e-4  # probabilities are clipped to [TINY, 1 - TINY]
# one, log odds, log probability, log depth, and a step for every rank but the first
FEATURES = 4 + RANKS - 1
BOUND = 12.0  # log odds are clipped here


@dataclass
class Logistic(Part):
    """Online logistic regression on source, rank, depth and confidence."""

    trust: float = 4.0  # weight of the prior, under which the estimate is the drafter's own
    memory: float = 2000.0  # trials after which old ones decay

    def __post_init__(self) -> None:
        between(1e-3, 1e6, trust=self.trust)
        between(1e-3, 1e9, memory=self.memory)

    def bind(self, setting: EngineContext) -> None:
        """Begin with the drafter's own probabilities; weights are shared by all requests."""
        self.weights = np.zeros((SOURCES, FEATURES))
        self.weights[:, 1] = 1.0  # log odds of acceptance = log odds of the draft
        # information on the weights, without that of the prior
        self.known = np.zeros((SOURCES, FEATURES, FEATURES))

    def chance(self, tree: Tree, start: int) -> FloatArray:
        """Chance of each node from `start` on."""
        source, features = described(tree, np.arange(start, len(tree)))
        return logistic(np.einsum("nf,nf->n", features, self.weights[source]))

    def observe(self, outcome: Outcome) -> None:
        """Make one step for each set of drafters whose nodes were verified."""
        if len(outcome.grown) == 1:
            return
        hit, tried = outcome.verified_nodes()
        nodes = np.flatnonzero(tried)
        source, features = described(outcome.grown, nodes)
        for one in np.unique(source).tolist():
            mine = source == one
            self._step(one, features[mine], hit[nodes][mine].astype(float))

    def _step(self, source: int, features: FloatArray, hits: FloatArray) -> None:
        """Move the weights by the error of these trials, [n, features] and [n]."""
        said = logistic(features @ self.weights[source])
        fade = max(1.0 - len(hits) / self.memory, 0.0)
        self.known[source] = (
            fade * self.known[source] + (features.T * (said * (1.0 - said))) @ features
        )
        firm = self.known[source] + self.trust * np.eye(FEATURES)
        self.weights[source] += np.linalg.solve(firm, features.T @ (hits - said))


def described(tree: Tree, nodes: IntArray) -> tuple[IntArray, FloatArray]:
    """The set of drafters and the features of these nodes, [n] and [n, features]."""
    probs = np.clip(tree.probs[nodes], TINY, 1.0 - TINY)
    found = np.zeros((len(nodes), FEATURES + 1))
    found[:, 0] = 1.0
    found[:, 1] = np.log(probs) - np.log1p(-probs)
    found[:, 2] = np.log(probs)
    found[:, 3] = np.log2(np.maximum(tree.depths[nodes], 1))
    ranks = np.minimum(tree.ranks[nodes], RANKS - 1)
    # rank 0 sets the last column, which is dropped
    found[np.arange(len(nodes)), np.where(ranks > 0, 3 + ranks, FEATURES)] = 1.0
    return tree.sources[nodes] % SOURCES, found[:, :FEATURES]


def logistic(odds: FloatArray) -> FloatArray:
    """Chances from log odds."""
    found: FloatArray = 1.0 / (1.0 + np.exp(-np.clip(odds, -BOUND, BOUND)))
    return found

"""Acceptance by an online logistic regression on confidence, rank and depth, for each set of drafters.

The log odds of acceptance are a line in the drafter's own log odds and log probability, with one step per
rank and a slope in the logarithm of depth; at the start they are the drafter's own. Each round makes one
Newton step: the weights move by what the round got wrong, measured by how much is known about them
already, and what is known fades slowly so that they keep following the text. Few numbers learn fast, where
a table of counts has to fill every cell; what is no line in these features it cannot learn.
"""

from dataclasses import dataclass

import numpy as np

from sapwood.arrays import FloatArray, IntArray
from sapwood.estimators.binned import RANKS, SOURCES, judged
from sapwood.part import Part, between
from sapwood.protocols import Setting
from sapwood.records import Outcome
from sapwood.tree import Tree

TINY = 1e-4  # least probability, and doubt, of a node
FEATURES = 4 + RANKS - 1  # one, log odds, log probability, log depth, and a step for every rank but the first
BOUND = 12.0  # log odds beyond which nobody is surer


@dataclass
class Logistic(Part):
    """Online logistic regression on source, rank, depth and confidence."""

    trust: float = 4.0  # how firmly the weights to begin with, which repeat the drafter, are held
    memory: float = 2000.0  # trials after which old ones begin to fade

    def __post_init__(self) -> None:
        between(1e-3, 1e6, trust=self.trust)
        between(1e-3, 1e9, memory=self.memory)

    def bind(self, setting: Setting) -> None:
        """Begin with the drafter's own words; the weights are shared by all requests."""
        self.weights = np.zeros((SOURCES, FEATURES))
        self.weights[:, 1] = 1.0  # log odds of acceptance = log odds of the draft
        self.known = np.zeros((SOURCES, FEATURES, FEATURES))  # information on the weights beyond what they began with

    def chance(self, tree: Tree, start: int) -> FloatArray:
        """Chance of each node from `start` on."""
        source, features = described(tree, np.arange(start, len(tree)))
        return logistic(np.einsum("nf,nf->n", features, self.weights[source]))

    def observe(self, outcome: Outcome) -> None:
        """One step for each set of drafters whose children were put to the question."""
        if len(outcome.grown) == 1:
            return
        hit, tried = judged(outcome)
        nodes = np.flatnonzero(tried)
        source, features = described(outcome.grown, nodes)
        for one in np.unique(source).tolist():
            mine = source == one
            self._step(one, features[mine], hit[nodes][mine].astype(float))

    def _step(self, source: int, features: FloatArray, hits: FloatArray) -> None:
        """Move the weights by the error of these trials, [n, features] and [n]."""
        said = logistic(features @ self.weights[source])
        fade = max(1.0 - len(hits) / self.memory, 0.0)
        self.known[source] = fade * self.known[source] + (features.T * (said * (1.0 - said))) @ features
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
    found[np.arange(len(nodes)), np.where(ranks > 0, 3 + ranks, FEATURES)] = 1.0  # the last column is thrown away
    return tree.sources[nodes] % SOURCES, found[:, :FEATURES]


def logistic(odds: FloatArray) -> FloatArray:
    """Chances from log odds."""
    found: FloatArray = 1.0 / (1.0 + np.exp(-np.clip(odds, -BOUND, BOUND)))
    return found

"""A chain that stops after a token below a probability threshold fitted to past acceptance.

The dynamic schedule of transformers' assisted generation, the untrained form of DISCO (arXiv
2405.04304): a drafted token below a threshold is the last one. After each round the threshold is
fitted again to all verified tokens of the request: of the thresholds on their ROC curve the one
that costs least, where stopping at a good token counts three times as much as drafting on from a
bad one. The token is kept: leaving out a draw by its own probability would change the output
distribution.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from sapwood.core.array_types import BoolArray, FloatArray
from sapwood.core.part import at_least, between
from sapwood.core.protocols import RequestContext
from sapwood.core.tree import Tree
from sapwood.core.types import Outcome
from sapwood.policies.stop_base import StopBase


@dataclass
class HfDynamic(StopBase):
    """A chain that ends with the first token below a probability that is re-fitted every round."""

    start: float = 0.4  # threshold before the first fit
    # cost of stopping at a token that is accepted, in drafts after one that is refused
    regret: float = 3.0
    samples: int = 5  # tested tokens that must be exceeded before a threshold is fitted

    paper: ClassVar[str] = "2405.04304"

    def __post_init__(self) -> None:
        between(0, 1, start=self.start)
        between(0, 1e6, regret=self.regret)
        at_least(1, samples=self.samples)

    def reset(self, request: RequestContext) -> None:
        """Begin without a record."""
        self.threshold_ = self.start
        self.probs_: list[float] = []
        self.stood_: list[bool] = []

    def ends(self, tree: Tree, child: int) -> bool:
        """True when this token's own probability is below the threshold."""
        return bool(tree.probs[child] < self.threshold_)

    def observe(self, outcome: Outcome) -> None:
        """Record the tested tokens (not those after a refusal) and fit the threshold."""
        tree = outcome.tree
        path = list(outcome.verdict.path)
        refused = tree.children(path[-1])[:1]
        self.probs_ += tree.probs[path[1:] + refused].tolist()
        self.stood_ += [True] * len(path[1:]) + [False] * len(refused)
        if len(self.probs_) > self.samples and len(set(self.stood_)) == 2:
            self.threshold_ = fit(np.array(self.probs_), np.array(self.stood_), self.regret)


def fit(probs: FloatArray, stood: BoolArray, regret: float) -> float:
    """The threshold of least cost.

    Cost is the share of refused tokens at or above it, plus `regret` times the share of accepted
    tokens below it.
    """
    order = np.argsort(-probs, kind="stable")
    probs = probs[order]
    stood = stood[order]
    # equal probabilities pass together
    last = np.append(np.flatnonzero(np.diff(probs)), len(probs) - 1)
    kept = np.cumsum(stood)[last]
    wrong = (last + 1 - kept) / (~stood).sum()
    lost = 1.0 - kept / stood.sum()
    cost = np.append(regret, wrong + regret * lost)  # the first: a threshold that nothing passes
    return float(np.append(np.inf, probs[last])[np.argmin(cost)])

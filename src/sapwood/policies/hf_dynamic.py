"""Stop after a token the drafter gave little probability; what is little is learnt from what was accepted.

The dynamic schedule of transformers' assisted generation, the untrained form of DISCO (arXiv 2405.04304): a
drafted token below a threshold is the last one. After each round the threshold is fitted again to
all tokens of the request that were put to the test: of the thresholds on their ROC curve the one that costs
least, a good token stopped at counting three times a bad one drafted on from. The token is kept: to leave out
a draw by its own probability would change the law.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from sapwood.arrays import BoolArray, FloatArray
from sapwood.part import at_least, between
from sapwood.policies.doubt import Stopping
from sapwood.protocols import Request
from sapwood.records import Outcome
from sapwood.tree import Tree


@dataclass
class HfDynamic(Stopping):
    """A chain that ends with the first token below a probability that is re-fitted every round."""

    start: float = 0.4  # threshold before enough was seen
    regret: float = 3.0  # cost of stopping at a token that is accepted, in drafts after one that is refused
    samples: int = 5  # tested tokens that must be exceeded before a threshold is fitted

    paper: ClassVar[str] = "2405.04304"

    def __post_init__(self) -> None:
        between(0, 1, start=self.start)
        between(0, 1e6, regret=self.regret)
        at_least(1, samples=self.samples)

    def reset(self, request: Request) -> None:
        """Begin without a record."""
        self.threshold_ = self.start
        self.probs_: list[float] = []
        self.stood_: list[bool] = []

    def ends(self, tree: Tree, child: int) -> bool:
        """True where this token's own probability is below the threshold."""
        return bool(tree.probs[child] < self.threshold_)

    def observe(self, outcome: Outcome) -> None:
        """Book the tokens that were tested, those after a refusal left out, and fit the threshold."""
        tree, path = outcome.tree, list(outcome.verdict.path)
        refused = tree.children(path[-1])[:1]
        self.probs_ += tree.probs[path[1:] + refused].tolist()
        self.stood_ += [True] * len(path[1:]) + [False] * len(refused)
        if len(self.probs_) > self.samples and len(set(self.stood_)) == 2:
            self.threshold_ = fit(np.array(self.probs_), np.array(self.stood_), self.regret)


def fit(probs: FloatArray, stood: BoolArray, regret: float) -> float:
    """The threshold of least cost: the share of refused tokens at or above it plus `regret` x accepted ones below."""
    order = np.argsort(-probs, kind="stable")
    probs, stood = probs[order], stood[order]
    last = np.append(np.flatnonzero(np.diff(probs)), len(probs) - 1)  # equal probabilities pass together
    kept = np.cumsum(stood)[last]
    wrong, lost = (last + 1 - kept) / (~stood).sum(), 1.0 - kept / stood.sum()
    cost = np.append(regret, wrong + regret * lost)  # the first: a threshold that nothing passes
    return float(np.append(np.inf, probs[last])[np.argmin(cost)])

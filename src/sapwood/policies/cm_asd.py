"""A chain whose length follows the certainty of the previous draft.

The length rule of CM-ASD (arXiv 2508.15371): entropy, logit margin and softmax margin make one
certainty from 0 to 1, and the next chain is as long as that share of the longest. The paper
averages it over the positions that are yet to be drafted, which only a drafter of parallel
positions could do; here it is the average over the previous round. With an exact verifier the rule
changes nothing but the speed; the paper's own verifier is `threshold`. The paper gives no
constants: the three have equal weight.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from sapwood.common.uncertainty import certainty_at
from sapwood.core.part import at_least, between
from sapwood.core.protocols import Frontier, RequestContext
from sapwood.core.tree import Tree
from sapwood.core.types import Budget, Outcome
from sapwood.policies.chain import Chain, first_path


@dataclass
class CmAsd(Chain):
    """A chain whose length follows the certainty of the previous draft."""

    shortest: int = 1
    longest: int = 10
    boldness: float = 1.0  # length at full certainty, in units of the longest

    paper: ClassVar[str] = "2508.15371"
    reads_probs = True

    def __post_init__(self) -> None:
        at_least(1, shortest=self.shortest, longest=self.longest)
        between(0, 100, boldness=self.boldness)

    def reset(self, request: RequestContext) -> None:
        """Begin with the longest chain."""
        self.length_ = self.longest

    def frontier(self, tree: Tree, budget: Budget) -> Frontier:
        """The end of the chain, up to this round's length."""
        return super().frontier(tree, budget) if tree.height < self.length_ else []

    def observe(self, outcome: Outcome) -> None:
        """Set the next length by the mean certainty of what was drafted."""
        nodes = first_path(outcome.grown)[:-1]
        if nodes:
            mean = float(np.mean([certainty_at(outcome.grown, node) for node in nodes]))
            self.length_ = min(
                self.longest, max(self.shortest, int(self.boldness * mean * self.longest))
            )

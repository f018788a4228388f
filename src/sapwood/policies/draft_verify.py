"""A chain that ends with a token below a threshold, which follows the acceptance rate.

Draft & Verify (arXiv 2309.08168): a drafted token below the threshold is the last one, and is
verified too. After every round the acceptance rate, a moving average of accepted over drafted
tokens that begins at 0 with each request, is compared with a target: below it the threshold should
be a step higher; above it a step lower, or as it is if the draft was as long as allowed. The
threshold moves a tenth of the way there, and goes on from one request to the next.
"""

from dataclasses import dataclass
from typing import ClassVar

from sapwood.core.part import between
from sapwood.core.protocols import EngineContext, Frontier, RequestContext
from sapwood.core.tree import Tree
from sapwood.core.types import Budget, Outcome
from sapwood.policies.stop_base import StopBase


@dataclass
class StopThreshold:
    """A threshold that all requests share."""

    value: float


@dataclass
class DraftVerify(StopBase):
    """A chain that ends with a token below a threshold moved by the acceptance rate."""

    start: float = 0.6  # threshold of the first round
    target: float = 0.9  # acceptance rate above which drafts may grow
    step: float = 0.01  # how far a round pushes the threshold
    inertia: float = 0.9  # how much of the old threshold stays
    memory: float = 0.5  # weight of earlier rounds in the acceptance rate

    paper: ClassVar[str] = "2309.08168"

    def __post_init__(self) -> None:
        between(0, 1, start=self.start, target=self.target, step=self.step)
        between(0, 1, inertia=self.inertia, memory=self.memory)

    def bind(self, setting: EngineContext) -> None:
        """Begin a threshold that all requests share."""
        self.threshold = StopThreshold(self.start)

    def reset(self, request: RequestContext) -> None:
        """Begin without accepted tokens."""
        self.rate_ = 0.0
        self.longest_ = 0

    def frontier(self, tree: Tree, budget: Budget) -> Frontier:
        """The end of the chain, until an unlikely token."""
        self.longest_ = min(budget.depth, budget.nodes)
        return super().frontier(tree, budget)

    def ends(self, tree: Tree, child: int) -> bool:
        """True when this token's own probability is below the threshold."""
        return bool(tree.probs[child] < self.threshold.value)

    def observe(self, outcome: Outcome) -> None:
        """Move the threshold by how the acceptance rate compares with the target."""
        drafted = outcome.tree.height
        if not drafted:
            return
        share = outcome.verdict.accepted / drafted
        self.rate_ = self.memory * self.rate_ + (1 - self.memory) * share
        now = self.threshold.value
        if self.rate_ < self.target:
            wanted = now + self.step
        else:
            wanted = now if drafted == self.longest_ else now - self.step
        self.threshold.value = self.inertia * now + (1 - self.inertia) * wanted

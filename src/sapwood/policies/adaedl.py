"""A chain that stops before a token drawn from too uncertain draft probs.

AdaEDL (arXiv 2410.18351): by Pinsker's inequality the chance of acceptance is at least 1 -
sqrt(KL(q, p) / 2), and the divergence is taken to grow with the entropy of q, which leaves 1 -
sqrt(0.2 H). Drafting ends before the first token for which this falls below a threshold; the
threshold rises while fewer than a target share of the drafts is accepted and falls otherwise. The
token is left out because of the distribution it was drawn from, not because of the token itself, so
sampled drafts keep the target's distribution. The draft pass that revealed the uncertainty is
wasted, which `svip` avoids. The first token is always drafted: with none there is no acceptance to
learn from. At a temperature, H is the entropy of the probs after the request's sampling options.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

from sapwood.common.uncertainty import entropy_at
from sapwood.core.part import between
from sapwood.core.protocols import RequestContext
from sapwood.core.tree import Tree
from sapwood.core.types import Outcome
from sapwood.policies.stop_base import StopBase


@dataclass
class AdaEdl(StopBase):
    """A chain that ends where the entropy of q bounds acceptance below a moving threshold."""

    weight: float = 0.2  # of the entropy in the bound
    start: float = 0.7  # threshold of the first round
    target: float = 0.9  # share of drafted tokens that should be accepted
    step: float = 0.01  # how far a round pushes the threshold
    inertia: float = 0.9  # how much of the old threshold stays
    memory: float = 0.5  # weight of earlier rounds in the share

    paper: ClassVar[str] = "2410.18351"
    reads_probs = True
    drops: ClassVar[bool] = True
    least: ClassVar[int] = 1

    def __post_init__(self) -> None:
        between(0, 100, weight=self.weight)
        between(
            0,
            1,
            start=self.start,
            target=self.target,
            step=self.step,
            inertia=self.inertia,
            memory=self.memory,
        )

    def reset(self, request: RequestContext) -> None:
        """Begin as if the target had been met."""
        self.threshold_ = self.start
        self.share_ = self.target

    def ends(self, tree: Tree, child: int) -> bool:
        """True when the acceptance bound of the probs this token came from is too low."""
        return (
            1.0 - math.sqrt(self.weight * entropy_at(tree, int(tree.parents[child])))
            < self.threshold_
        )

    def observe(self, outcome: Outcome) -> None:
        """Move the threshold by how the share of accepted tokens compares with the target."""
        drafted = outcome.tree.height
        if not drafted:
            return
        self.share_ = (
            self.memory * self.share_ + (1 - self.memory) * outcome.verdict.accepted / drafted
        )
        wanted = self.threshold_ + (self.step if self.share_ <= self.target else -self.step)
        self.threshold_ = self.inertia * self.threshold_ + (1 - self.inertia) * wanted

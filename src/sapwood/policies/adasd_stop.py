"""A chain that stops after a token drawn with as much entropy as refused tokens had.

The stop rule of AdaSD (arXiv 2512.11280): drafting ends with the first token whose draft probs have
more entropy than those of refused tokens had on average. The paper's mean never forgets and is
undefined before the first refusal; here old refusals decay, and nothing stops before the first.
Its lossy verifier is `adasd`.
"""

from dataclasses import dataclass
from typing import ClassVar

from sapwood.common.uncertainty import DecayedMean, entropy_at
from sapwood.core.part import between
from sapwood.core.protocols import RequestContext
from sapwood.core.tree import Tree
from sapwood.core.types import Outcome
from sapwood.policies.stop_base import StopBase


@dataclass
class AdaSdStop(StopBase):
    """A chain that ends where draft entropy exceeds the mean of refused tokens."""

    fade: float = 0.95  # weight that a refusal keeps after the next one; 1 forgets nothing

    paper: ClassVar[str] = "2512.11280"
    reads_probs = True

    def __post_init__(self) -> None:
        between(0, 1, fade=self.fade)

    def reset(self, request: RequestContext) -> None:
        """Begin without refusals."""
        self.refused_ = DecayedMean(self.fade)

    def ends(self, tree: Tree, child: int) -> bool:
        """True when this token's draft probs have more entropy than the mean of refused ones."""
        limit = self.refused_.value
        return limit is not None and entropy_at(tree, int(tree.parents[child])) > limit

    def observe(self, outcome: Outcome) -> None:
        """Add the draft entropy at the refused token to the mean."""
        last = outcome.verdict.path[-1]
        if outcome.tree.children(last):
            self.refused_.add(entropy_at(outcome.tree, last))

"""A chain that stops after a token when the drafter's best token was unlikely.

Kangaroo's second exit (arXiv 2404.18911), and an arm of TapOut (arXiv 2511.02017): where the
largest probability of the distribution that the newest token came from is below a threshold, the
token is the last one. It is drafted already and stays; BiLD's `fallback` leaves it out.
"""

from dataclasses import dataclass
from typing import ClassVar

from sapwood.common.uncertainty import peak_at
from sapwood.core.part import between
from sapwood.core.tree import Tree
from sapwood.policies.stop_base import StopBase


@dataclass
class MaxConfidence(StopBase):
    """A chain that ends with the first token drawn from probs without a likely token."""

    confidence: float = 0.6  # least probability of the best token

    paper: ClassVar[str] = "2404.18911"
    reads_probs = True

    def __post_init__(self) -> None:
        between(0, 1, confidence=self.confidence)

    def ends(self, tree: Tree, child: int) -> bool:
        """True when the probs this token came from have no likely token."""
        return peak_at(tree, int(tree.parents[child])) < self.confidence

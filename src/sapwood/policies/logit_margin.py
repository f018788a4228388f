"""A chain that stops after a token where the two best tokens were close.

An arm of TapOut (arXiv 2511.02017): the lead of the best token over the second, here of their
probabilities, below a threshold ends the draft with the token.
"""

from dataclasses import dataclass
from typing import ClassVar

from sapwood.common.uncertainty import lead_at
from sapwood.core.part import between
from sapwood.core.tree import Tree
from sapwood.policies.stop_base import StopBase


@dataclass
class LogitMargin(StopBase):
    """A chain that ends with the first token drawn from probs whose two best are close."""

    margin: float = 0.2  # least lead of the best token's probability over the second's

    paper: ClassVar[str] = "2511.02017"
    reads_probs = True

    def __post_init__(self) -> None:
        between(0, 1, margin=self.margin)

    def ends(self, tree: Tree, child: int) -> bool:
        """True when the probs this token came from have no clear best token."""
        return lead_at(tree, int(tree.parents[child])) < self.margin

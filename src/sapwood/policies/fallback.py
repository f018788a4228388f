"""A chain that stops before a token when the drafter's best token is unlikely.

The fallback of BiLD (arXiv 2302.07863): the small model generates while its best token has enough
probability; a token below that is discarded and the large model takes over. The decision depends on
the largest probability of q, not on the drawn token's own, so drawn tokens may be verified by any
rule. Its lossy verifier is `bild`.
"""

from dataclasses import dataclass
from typing import ClassVar

from sapwood.common.uncertainty import peak_at
from sapwood.core.part import between
from sapwood.core.tree import Tree
from sapwood.policies.stop_base import StopBase


@dataclass
class Fallback(StopBase):
    """A chain that ends where the drafter's best token is unlikely."""

    confidence: float = 0.6  # least probability of the best token

    paper: ClassVar[str] = "2302.07863"
    reads_probs = True
    drops: ClassVar[bool] = True

    def __post_init__(self) -> None:
        between(0, 1, confidence=self.confidence)

    def ends(self, tree: Tree, child: int) -> bool:
        """True when the probs this token came from have no likely token."""
        return peak_at(tree, int(tree.parents[child])) < self.confidence

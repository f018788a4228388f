"""Hand over to the target as soon as the drafter is not confident of its best token.

The fallback of BiLD (arXiv 2302.07863): the small model writes while its best token has enough probability; a
token below that is thrown away and the large model speaks. Whether it stays is decided by the largest
probability of the law, not by the token's own, so drawn tokens may be judged by any rule. Its lossy
verifier is `bild`.
"""

from dataclasses import dataclass
from typing import ClassVar

from sapwood.doubt import peak_at
from sapwood.part import between
from sapwood.policies.doubt import Stopping
from sapwood.tree import Tree


@dataclass
class Fallback(Stopping):
    """A chain that ends before the first law whose best token is unlikely."""

    confidence: float = 0.6  # least probability of the best token

    paper: ClassVar[str] = "2302.07863"
    reads_laws = True
    drops: ClassVar[bool] = True

    def __post_init__(self) -> None:
        between(0, 1, confidence=self.confidence)

    def ends(self, tree: Tree, child: int) -> bool:
        """True where the law this token came from has no likely token."""
        return peak_at(tree, int(tree.parents[child])) < self.confidence

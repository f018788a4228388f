"""Roll back at the first drafted token of too low a target probability (lossy).

BiLD (arXiv 2302.07863): the large model scores the small one's output and replaces the first token
whose -ln p exceeds a distance; all before it is accepted, likely or not. At the published distance
a token of probability 0.007 stays. The public code looks at one offending token only when its own
best token agrees with it, and never at the later ones; here every token is checked. The policy that
belongs to it is `fallback`.
"""

from dataclasses import dataclass
from typing import ClassVar

from sapwood.core.part import between
from sapwood.core.tree import Tree
from sapwood.verifiers.lenient import Belief, Lenient, surprise


@dataclass
class Bild(Lenient):
    """LOSSY: accept drafted tokens up to the first whose -ln p exceeds a distance."""

    rollback: float = 5.0  # largest accepted -ln p in nats; the authors suggest 2 to 5

    paper: ClassVar[str] = "2302.07863"

    def __post_init__(self) -> None:
        between(0, 100, rollback=self.rollback)

    def accepts_instead(self, tree: Tree, child: int, belief: Belief) -> bool:
        """True when the token's -ln p is within the distance."""
        return surprise(tree, child, belief) <= self.rollback

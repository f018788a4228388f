"""Roll back at the first drafted token that surprises the target too much.

BiLD (arXiv 2302.07863): the large model reads what the small one wrote and replaces the first token whose
-ln p exceeds a distance; all before it stands, likely or not. At the published distance a token of
probability 0.007 stays. The public code looks at one offending token only when its own best token
agrees with it, and never at the later ones; here every token is looked at. The policy that belongs to it
is `fallback`.
"""

from dataclasses import dataclass
from typing import ClassVar

from sapwood.part import between
from sapwood.tree import Tree
from sapwood.verifiers.lenient import Belief, Lenient, surprise


@dataclass
class Bild(Lenient):
    """LOSSY: accept every drafted token up to the first that surprises the target more than a distance."""

    rollback: float = 5.0  # nats of surprise that are let pass; the authors suggest 2 to 5

    paper: ClassVar[str] = "2302.07863"

    def __post_init__(self) -> None:
        between(0, 100, rollback=self.rollback)

    def excuses(self, tree: Tree, child: int, belief: Belief) -> bool:
        """True where the token is no great surprise."""
        return surprise(tree, child, belief) <= self.rollback

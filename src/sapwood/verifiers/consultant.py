"""Accept drafted tokens while a moving average of the target's -ln p is low (lossy).

Consultant Decoding (arXiv 2506.02391): a moving average of -ln p over the drafted tokens must stay
below about the loss the target was trained to. q is not used, so the output follows the drafter
within what the target finds plausible. Two properties to know: a likely token compensates for an
unlikely one after it, and the same limit holds where the target is certain of another token. The
average begins anew each round.
"""

from dataclasses import dataclass
from typing import ClassVar

from sapwood.core.part import between
from sapwood.core.tree import ROOT, Tree
from sapwood.verifiers.lenient import Belief, Lenient, surprise


@dataclass
class Consultant(Lenient):
    """LOSSY: accept while a moving average of the target's surprise stays below a limit."""

    limit: float = 2.0  # nats
    memory: float = 0.2  # weight of the tokens before in the average

    paper: ClassVar[str] = "2506.02391"

    def __post_init__(self) -> None:
        between(0, 100, limit=self.limit)
        between(0, 1, memory=self.memory)

    def accepts_instead(self, tree: Tree, child: int, belief: Belief) -> bool:
        """True when the average up to this token is within the limit."""
        first, *others = [surprise(tree, node, belief) for node in tree.path(child) if node != ROOT]
        mean = first
        for nats in others:
            mean = self.memory * mean + (1 - self.memory) * nats
        return mean <= self.limit

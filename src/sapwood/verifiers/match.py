"""Draw the target's own token at each node, with noise keyed by position, and follow it.

The tree only decides how many of plain decoding's tokens come out of one pass, never which:
with the same seed the text is plain decoding's own. At temperature 0 this is the greedy walk.
"""

from dataclasses import dataclass
from typing import ClassVar

from sapwood.core.part import Part
from sapwood.core.protocols import TargetProbs
from sapwood.core.rng import Rng
from sapwood.core.tree import ROOT, Tree
from sapwood.core.types import Draw, Guarantee, Verdict


@dataclass
class Match(Part):
    """Draw the target's token as plain decoding would; follow it while the tree holds it."""

    accepts: ClassVar[frozenset[Draw]] = frozenset(Draw)
    guarantee: ClassVar[Guarantee] = Guarantee.TEXT
    reads_q: ClassVar[bool] = False

    def follows(self, target: TargetProbs) -> bool:
        """True: the verdict is the walk along the target's own tokens."""
        return True

    def verify(self, tree: Tree, target: TargetProbs, position: int, rng: Rng) -> Verdict:
        """Walk along the target's own draws."""
        return follow(tree, target, position, rng)


def follow(tree: Tree, target: TargetProbs, position: int, rng: Rng) -> Verdict:
    """Take the target's own token at each node and follow it while the tree holds it."""
    verdict = target.follow(position, rng)
    if verdict is not None:
        return verdict
    path = [ROOT]
    while True:
        token = target.draw(path[-1], position + len(path), rng)
        child = tree.child(path[-1], token)
        if child is None:
            return Verdict(tuple(path), token)
        path.append(child)

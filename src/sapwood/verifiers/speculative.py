"""Speculative sampling on a chain: accept min(1, p/q), else resample from the residual.

Leviathan et al. (arXiv 2211.17192) and Chen et al. (arXiv 2302.01318). Where a node has several
sampled children only the first is tested, which keeps the rule exact on any sampled tree.
"""

from dataclasses import dataclass
from typing import ClassVar

from sapwood.core.protocols import TargetProbs
from sapwood.core.rng import Rng
from sapwood.core.tree import Tree
from sapwood.core.types import Draw, Guarantee, Verdict
from sapwood.verifiers.walk import GreedyWalk, in_turn, walk


@dataclass
class Speculative(GreedyWalk):
    """Accept the first sampled child with chance min(1, p/q), else draw from norm((p - q)+)."""

    paper: ClassVar[str] = "2211.17192"
    accepts: ClassVar[frozenset[Draw]] = frozenset({Draw.IID, Draw.SWOR})
    guarantee: ClassVar[Guarantee] = Guarantee.LAW
    reads_q: ClassVar[bool] = True

    def verify(self, tree: Tree, target: TargetProbs, position: int, rng: Rng) -> Verdict:
        """Walk down the first children."""
        return walk(tree, target, position, rng, in_turn(replacement=True, most=1))

"""Multi-step speculative sampling over independent draws.

SpecInfer (arXiv 2305.09781): siblings drawn independently from q are tested in turn, each refusal
taking q out of the residual once. A token drawn twice is tested twice; siblings of several
drafters are tested by their own q each.
"""

from dataclasses import dataclass
from typing import ClassVar

from sapwood.core.protocols import TargetProbs
from sapwood.core.rng import Rng
from sapwood.core.tree import Tree
from sapwood.core.types import Draw, Guarantee, Verdict
from sapwood.verifiers.walk import GreedyWalk, in_turn, walk


@dataclass
class Mss(GreedyWalk):
    """Test independent draws in turn; q keeps its mass after a refusal."""

    paper: ClassVar[str] = "2305.09781"
    accepts: ClassVar[frozenset[Draw]] = frozenset({Draw.IID})
    guarantee: ClassVar[Guarantee] = Guarantee.LAW
    reads_q: ClassVar[bool] = True

    def verify(self, tree: Tree, target: TargetProbs, position: int, rng: Rng) -> Verdict:
        """Walk down the accepted draws."""
        return walk(tree, target, position, rng, in_turn(replacement=True))

"""Recursive rejection sampling over draws without replacement.

RSD (arXiv 2402.14160), Sequoia (arXiv 2402.12374), EAGLE-1 (arXiv 2401.15077): siblings are tested
in the order they were drawn, and q loses each refused token before the next is tested.
"""

from dataclasses import dataclass
from typing import ClassVar

from sapwood.core.protocols import TargetProbs
from sapwood.core.rng import Rng
from sapwood.core.tree import Tree
from sapwood.core.types import Draw, Guarantee, Verdict
from sapwood.verifiers.walk import GreedyWalk, in_turn, walk


@dataclass
class Rrs(GreedyWalk):
    """Test draws without replacement in turn; q loses each refused token."""

    paper: ClassVar[str] = "2402.14160"
    accepts: ClassVar[frozenset[Draw]] = frozenset({Draw.SWOR})
    guarantee: ClassVar[Guarantee] = Guarantee.LAW
    reads_q: ClassVar[bool] = True

    def verify(self, tree: Tree, target: TargetProbs, position: int, rng: Rng) -> Verdict:
        """Walk down the accepted draws."""
        return walk(tree, target, position, rng, in_turn(replacement=False))

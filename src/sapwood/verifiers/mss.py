"""Multi-step speculative sampling over independent draws.

SpecInfer (arXiv 2305.09781): siblings drawn independently from q are tested in turn, each refusal
taking q out of the residual once. A token drawn twice is tested twice; siblings of several
drafters are judged by their own q each.
"""

from dataclasses import dataclass
from typing import ClassVar

from sapwood.part import Part
from sapwood.protocols import Laws
from sapwood.records import Draw, Guarantee, Verdict
from sapwood.rng import Rng
from sapwood.tree import Tree
from sapwood.verifiers.walk import in_turn, walk


@dataclass
class Mss(Part):
    """Test independent draws in turn; q keeps its mass after a refusal."""

    paper: ClassVar[str] = "2305.09781"
    accepts: ClassVar[frozenset[Draw]] = frozenset({Draw.IID})
    guarantee: ClassVar[Guarantee] = Guarantee.LAW
    reads_q: ClassVar[bool] = True

    def verify(self, tree: Tree, laws: Laws, position: int, rng: Rng) -> Verdict:
        """Walk down the accepted draws."""
        return walk(tree, laws, position, rng, in_turn(replacement=True))

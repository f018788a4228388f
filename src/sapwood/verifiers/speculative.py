"""Speculative sampling on a chain: accept min(1, p/q), else resample from the residual.

Leviathan et al. (arXiv 2211.17192) and Chen et al. (arXiv 2302.01318). Where a node has several
sampled children only the first is judged, which keeps the rule exact on any sampled tree.
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
class Speculative(Part):
    """Accept the first sampled child with chance min(1, p/q), else draw from norm((p - q)+)."""

    paper: ClassVar[str] = "2211.17192"
    accepts: ClassVar[frozenset[Draw]] = frozenset({Draw.IID, Draw.SWOR})
    guarantee: ClassVar[Guarantee] = Guarantee.LAW
    reads_q: ClassVar[bool] = True

    def verify(self, tree: Tree, laws: Laws, position: int, rng: Rng) -> Verdict:
        """Walk down the first children."""
        return walk(tree, laws, position, rng, in_turn(replacement=True, most=1))

"""Lossless verification of siblings of which some are chosen and some sampled.

Generalises the hybrid rule (arXiv 2502.18779, one sampled child) to any number of chosen children
from any source and any number drawn without replacement from the rest. Why it is exact: testing the
sampled children in turn emits a token distributed as p whether or not the tree holds that token;
being in the tree only decides whether the walk goes on. With no sampled child this is `naive`, with
no chosen child it is `rrs`.
"""

from dataclasses import dataclass
from typing import ClassVar

from sapwood.core.array_types import FloatArray
from sapwood.core.protocols import TargetProbs
from sapwood.core.rng import NoiseKey, Rng
from sapwood.core.tree import Tree
from sapwood.core.types import Draw, Guarantee, Verdict
from sapwood.verifiers.walk import GreedyWalk, refuse_in_turn, walk


@dataclass
class Mixed(GreedyWalk):
    """Test the sampled children in turn, then let one residual draw choose among the others."""

    paper: ClassVar[str] = "2502.18779"
    accepts: ClassVar[frozenset[Draw]] = frozenset({Draw.TOPK, Draw.SWOR, Draw.MIXED})
    guarantee: ClassVar[Guarantee] = Guarantee.LAW
    reads_q: ClassVar[bool] = True

    def verify(self, tree: Tree, target: TargetProbs, position: int, rng: Rng) -> Verdict:
        """Walk down sampled or chosen children."""
        return walk(tree, target, position, rng, step)


def step(tree: Tree, node: int, p: FloatArray, position: int, rng: Rng) -> tuple[int | None, int]:
    """Test the sampled children, then look up the residual's token among the chosen ones."""
    sampled = [child for child in tree.children(node) if tree.sampled[child]]
    child, rest = refuse_in_turn(tree, sampled, p, position, rng, replacement=False)
    if child is not None:
        return child, -1
    token = rng.pick(rest, NoiseKey(position))
    return tree.child(node, token), token

"""One draw per node over the target's probability of the children; q is not used.

Target-only sampling, as in SpecExec (arXiv 2406.02532) and OPT-Tree (arXiv 2406.17276). Exact for
any tree, whatever built it. Cheaper than `match` on a wide vocabulary, since vocabulary-wide noise
is needed only once per round, but the seed's text is its own.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from sapwood.core.array_types import FloatArray
from sapwood.core.protocols import TargetProbs
from sapwood.core.rng import NoiseKey, NoiseUse, Rng
from sapwood.core.tree import Tree
from sapwood.core.types import Draw, Guarantee, Verdict
from sapwood.verifiers.walk import GreedyWalk, walk


@dataclass
class Naive(GreedyWalk):
    """Accept a child with the target's own probability of its token."""

    paper: ClassVar[str] = "2406.02532"
    accepts: ClassVar[frozenset[Draw]] = frozenset(Draw)
    guarantee: ClassVar[Guarantee] = Guarantee.LAW
    reads_q: ClassVar[bool] = False

    def verify(self, tree: Tree, target: TargetProbs, position: int, rng: Rng) -> Verdict:
        """Walk down by target mass alone."""
        return walk(tree, target, position, rng, step)


def step(tree: Tree, node: int, p: FloatArray, position: int, rng: Rng) -> tuple[int | None, int]:
    """Choose among the distinct children and "none of them"; the latter draws from what is left."""
    children = list(
        {int(tree.tokens[child]): child for child in reversed(tree.children(node))}.values()
    )
    tokens = tree.tokens[children]
    shares = np.append(p[tokens], max(0.0, 1.0 - p[tokens].sum()))
    choice = rng.pick(shares, NoiseKey(position, NoiseUse.ACCEPT)) if children else 0
    if choice < len(children):
        return children[choice], int(tokens[choice])
    rest = p.copy()
    rest[tokens] = 0.0
    return None, rng.pick(rest / (rest.sum() or 1.0), NoiseKey(position))

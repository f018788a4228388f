"""Traversal verification: verify a tree from its leaves, by the joint likelihood of whole paths.

Weng et al. (arXiv 2505.12398); on a chain it is block verification. Top-down rules throw away a
subtree as soon as its first token is refused; here a path is kept with the chance its whole product
of p/q supports:

1. Go down along first children; a child x is kept with chance a_x = min(1, a p(x) / q(x)), a being
   its parent's.
2. A node without children is kept, with all above it, with its chance; the next token comes from
   its present p.
3. Else it is deleted: its parent's p becomes norm((a p - q)+), of mass S, its a becomes
   S / (S + 1 - a), q becomes that of the next sibling, and the walk goes on from the parent. The
   root is always kept.

Whatever grows below a node, the node is given up with chance 1 - a_x exactly, so a subtree may be
drawn or left out by anything known before. Chosen children have a one-hot q, and come after the
sampled ones. A public version of the rule sets the parent's chance to min(1, S / (1 - q(x))), which
changes the distribution.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from sapwood.core.array_types import FloatArray
from sapwood.core.protocols import TargetProbs
from sapwood.core.rng import NoiseKey, NoiseUse, Rng
from sapwood.core.tree import ROOT, Tree
from sapwood.core.types import Draw, Guarantee, Verdict
from sapwood.verifiers.match import follow
from sapwood.verifiers.walk import GreedyWalk, credit, drawn_from, excess


@dataclass
class Traversal(GreedyWalk):
    """Keep the longest path that its joint likelihood supports, from the leaves up."""

    paper: ClassVar[str] = "2505.12398"
    accepts: ClassVar[frozenset[Draw]] = frozenset({Draw.TOPK, Draw.SWOR, Draw.MIXED})
    guarantee: ClassVar[Guarantee] = Guarantee.LAW
    reads_q: ClassVar[bool] = True
    replacement: ClassVar[bool] = False

    def verify(self, tree: Tree, target: TargetProbs, position: int, rng: Rng) -> Verdict:
        """Go down to a leaf, keep it or delete it, until a path is kept.

        All coins are keyed by the first position, which this round decides: the next round verifies
        later positions again.
        """
        if target.greedy:
            return follow(tree, target, position, rng)
        path = [PathNode(ROOT, 1.0, target, guesses(tree, ROOT, replacement=self.replacement))]
        while True:
            stop = path[-1]
            child, chance = stop.next(tree)
            if child is not None and chance > 0:
                path.append(
                    PathNode(
                        child, chance, target, guesses(tree, child, replacement=self.replacement)
                    )
                )
            elif child is not None:
                stop.refuse()
            elif stop.node == ROOT or rng.flip(
                stop.chance, NoiseKey(position + 1, NoiseUse.ACCEPT, stop.node)
            ):
                return Verdict(
                    tuple(stop.node for stop in path),
                    rng.pick(stop.p, NoiseKey(position + len(path))),
                )
            else:
                path.pop()
                path[-1].refuse()


class PathNode:
    """A node on the path being verified."""

    def __init__(
        self,
        node: int,
        chance: float,
        target: TargetProbs,
        guesses: Iterator[tuple[int, FloatArray | None]],
    ) -> None:
        self.node = node
        self.chance = chance
        self.target = target
        self.guesses = guesses
        self.probs: FloatArray | None = None

    @property
    def p(self) -> FloatArray:
        """Probs of the next token after the refused children; computed on first use."""
        if self.probs is None:
            self.probs = self.target.probs(self.node)
        return self.probs

    def next(self, tree: Tree) -> tuple[int | None, float]:
        """The next child to test and its chance; None if there is no further one."""
        child, q = next(self.guesses, (None, None))
        if child is None:
            return None, 0.0
        token = int(tree.tokens[child])
        self.q = one_hot(token, len(self.p)) if q is None else q
        return child, credit(self.chance, self.p, self.q, token)

    def refuse(self) -> None:
        """Delete the child that was tested last."""
        self.chance, self.probs = excess(self.chance, self.p, self.q)


def guesses(tree: Tree, node: int, *, replacement: bool) -> Iterator[tuple[int, FloatArray | None]]:
    """Children in test order: sampled ones with their q, then chosen ones with None."""
    children = tree.children(node)
    yield from drawn_from(
        tree, [child for child in children if tree.sampled[child]], replacement=replacement
    )
    yield from ((child, None) for child in children if not tree.sampled[child])


def one_hot(token: int, size: int) -> FloatArray:
    """Probs that give a token all mass, [size]."""
    probs: FloatArray = np.zeros(size)
    probs[token] = 1.0
    return probs

"""Traversal verification: judge a tree from its leaves, so that a whole path may be kept for its joint likelihood.

Weng et al. (arXiv 2505.12398); on a chain it is block verification. Top-down rules throw away a subtree as soon
as its first token is refused; here a path is kept with the chance its whole product of p/q supports:

1. Go down along first children; a child x is kept with chance a_x = min(1, a p(x) / q(x)), a being its parent's.
2. A node without children is kept, with all above it, with its chance; the next token comes from its present p.
3. Else it is deleted: its parent's p becomes norm((a p - q)+), of mass S, its a becomes S / (S + 1 - a), q becomes
   the law of the next sibling, and the walk goes on from the parent. The root is kept for sure.

Whatever grows below a node, the node is given up with chance 1 - a_x exactly, so a subtree may be drawn or left
out by anything known before. Chosen children are sure guesses, q one-hot, and come after the sampled ones.
A public rendering of the rule sets the parent's chance to min(1, S / (1 - q(x))), which changes the law.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from sapwood.arrays import FloatArray
from sapwood.part import Part
from sapwood.protocols import Laws
from sapwood.records import Draw, Guarantee, Verdict
from sapwood.rng import Place, Rng, Use
from sapwood.tree import ROOT, Tree
from sapwood.verifiers.walk import credit, drawn_from, excess, follow


@dataclass
class Traversal(Part):
    """Keep the longest path that its joint likelihood supports, from the leaves up."""

    paper: ClassVar[str] = "2505.12398"
    accepts: ClassVar[frozenset[Draw]] = frozenset({Draw.TOPK, Draw.SWOR, Draw.MIXED})
    guarantee: ClassVar[Guarantee] = Guarantee.LAW
    reads_q: ClassVar[bool] = True
    replacement: ClassVar[bool] = False

    def verify(self, tree: Tree, laws: Laws, position: int, rng: Rng) -> Verdict:
        """Go down to a leaf, keep it or delete it, until a path is kept.

        All coins lie at the first position, which this round decides: the next round will judge the later ones anew.
        """
        if laws.greedy:
            return follow(tree, laws, position, rng)
        path = [Stop(ROOT, 1.0, laws, guesses(tree, ROOT, replacement=self.replacement))]
        while True:
            stop = path[-1]
            child, chance = stop.next(tree)
            if child is not None and chance > 0:
                path.append(Stop(child, chance, laws, guesses(tree, child, replacement=self.replacement)))
            elif child is not None:
                stop.refuse()
            elif stop.node == ROOT or rng.flip(stop.chance, Place(position + 1, Use.ACCEPT, stop.node)):
                return Verdict(tuple(stop.node for stop in path), rng.pick(stop.p, Place(position + len(path))))
            else:
                path.pop()
                path[-1].refuse()


@dataclass
class TraversalIid(Traversal):
    """As traversal, for siblings that are independent draws."""

    accepts: ClassVar[frozenset[Draw]] = frozenset({Draw.IID})
    replacement: ClassVar[bool] = True


class Stop:
    """A node on the path under judgement."""

    def __init__(self, node: int, chance: float, laws: Laws, guesses: Iterator[tuple[int, FloatArray | None]]) -> None:
        self.node, self.chance, self.laws, self.guesses = node, chance, laws, guesses
        self.law: FloatArray | None = None

    @property
    def p(self) -> FloatArray:
        """Law of the next token, less what refused children have claimed; computed when first asked for."""
        if self.law is None:
            self.law = self.laws.law(self.node)
        return self.law

    def next(self, tree: Tree) -> tuple[int | None, float]:
        """The next child to judge and its chance; None where there is no further one."""
        child, q = next(self.guesses, (None, None))
        if child is None:
            return None, 0.0
        token = int(tree.tokens[child])
        self.q = one_hot(token, len(self.p)) if q is None else q
        return child, credit(self.chance, self.p, self.q, token)

    def refuse(self) -> None:
        """Delete the child that was judged last."""
        self.chance, self.law = excess(self.chance, self.p, self.q)


def guesses(tree: Tree, node: int, *, replacement: bool) -> Iterator[tuple[int, FloatArray | None]]:
    """Children in the order they are judged, each with its law: the sampled ones, then the chosen ones, without."""
    children = tree.children(node)
    yield from drawn_from(tree, [child for child in children if tree.sampled[child]], replacement=replacement)
    yield from ((child, None) for child in children if not tree.sampled[child])


def one_hot(token: int, size: int) -> FloatArray:
    """The law that is sure of a token."""
    law: FloatArray = np.zeros(size)
    law[token] = 1.0
    return law

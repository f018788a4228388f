"""What lossy rules share: the target's own token is followed where the tree holds it, and a child may be excused.

A rule that excuses is asked only where the tree lacks the target's own token, and about the child the target
likes best: whatever it lets pass, each token of the output was looked at by the target. A threshold in place
of the coin and the residual changes the law, however strict it is; every such rule says LOSSY.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import ClassVar

import numpy as np

from sapwood.arrays import FloatArray
from sapwood.part import Part
from sapwood.protocols import Laws
from sapwood.records import Draw, Guarantee, Verdict
from sapwood.rng import Rng
from sapwood.tree import ROOT, Tree

Belief = Callable[[int], FloatArray]  # node -> what the target thinks of the next token, greedy or not, [vocab]


def excuse(tree: Tree, laws: Laws, position: int, rng: Rng, pardon: Callable[[list[int]], int | None]) -> Verdict:
    """Walk along the target's own tokens; where the tree lacks one, along the child that `pardon` picks, if any."""
    path = [ROOT]
    while True:
        token = laws.draw(path[-1], position + len(path), rng)
        child = tree.child(path[-1], token)
        if child is None:
            child = pardon(tree.children(path[-1]))
        if child is None:
            return Verdict(tuple(path), token)
        path.append(child)


@dataclass
class Lenient(Part):
    """A rule that accepts a token the target would not have said, if the target thinks well enough of it."""

    accepts: ClassVar[frozenset[Draw]] = frozenset(Draw)
    guarantee: ClassVar[Guarantee] = Guarantee.LOSSY
    reads_q: ClassVar[bool] = False

    def excuses(self, tree: Tree, child: int, belief: Belief) -> bool:
        """True where this child may stand in for the target's own token."""
        raise NotImplementedError

    def verify(self, tree: Tree, laws: Laws, position: int, rng: Rng) -> Verdict:
        """Walk along the target's own tokens and what is excused."""
        belief = cache(laws.soft)

        def pardon(children: list[int]) -> int | None:
            if not children:
                return None
            likes = belief(int(tree.parents[children[0]]))[tree.tokens[children]]
            best = children[int(np.argmax(likes))]
            return best if self.excuses(tree, best, belief) else None

        return excuse(tree, laws, position, rng, pardon)


def surprise(tree: Tree, child: int, belief: Belief) -> float:
    """-ln of the target's probability of this token, in nats."""
    chance = float(belief(int(tree.parents[child]))[tree.tokens[child]])
    return -math.log(chance) if chance > 0 else math.inf

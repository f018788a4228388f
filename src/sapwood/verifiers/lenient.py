"""Base of lossy rules: follow the target's own token, or a child that the rule excuses.

The rule is applied only where the tree lacks the target's own token, to the child of the largest
target probability: each token of the output was scored by the target. A threshold in place of the
coin and the residual changes the distribution, however strict it is; every such rule is LOSSY.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import ClassVar

import numpy as np

from sapwood.core.array_types import FloatArray
from sapwood.core.part import Part
from sapwood.core.protocols import TargetProbs
from sapwood.core.rng import Rng
from sapwood.core.tree import ROOT, Tree
from sapwood.core.types import Draw, Guarantee, Verdict

# node -> the target's probs of the next token, also at temperature 0, [vocab]
Belief = Callable[[int], FloatArray]


def walk_leniently(
    tree: Tree,
    target: TargetProbs,
    position: int,
    rng: Rng,
    replacement: Callable[[list[int]], int | None],
) -> Verdict:
    """Walk along the target's own tokens, or children that `replacement` picks where they end."""
    path = [ROOT]
    while True:
        token = target.draw(path[-1], position + len(path), rng)
        child = tree.child(path[-1], token)
        if child is None:
            child = replacement(tree.children(path[-1]))
        if child is None:
            return Verdict(tuple(path), token)
        path.append(child)


@dataclass
class Lenient(Part):
    """A rule that accepts a mismatching token if its target probability is high enough."""

    accepts: ClassVar[frozenset[Draw]] = frozenset(Draw)
    guarantee: ClassVar[Guarantee] = Guarantee.LOSSY
    reads_q: ClassVar[bool] = False

    def accepts_instead(self, tree: Tree, child: int, belief: Belief) -> bool:
        """True when this child may replace the target's own token."""
        raise NotImplementedError

    def verify(self, tree: Tree, target: TargetProbs, position: int, rng: Rng) -> Verdict:
        """Walk along the target's own tokens and excused ones."""
        belief = cache(target.soft)

        def replacement(children: list[int]) -> int | None:
            if not children:
                return None
            likes = belief(int(tree.parents[children[0]]))[tree.tokens[children]]
            best = children[int(np.argmax(likes))]
            return best if self.accepts_instead(tree, best, belief) else None

        return walk_leniently(tree, target, position, rng, replacement)


def surprise(tree: Tree, child: int, belief: Belief) -> float:
    """-ln of the target's probability of this token, in nats."""
    chance = float(belief(int(tree.parents[child]))[tree.tokens[child]])
    return -math.log(chance) if chance > 0 else math.inf

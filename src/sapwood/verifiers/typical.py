"""Typical acceptance: the longest path of tokens that are likely enough for the target (lossy).

Medusa's typical acceptance (arXiv 2401.10774): a token passes if its probability exceeds a fixed
floor, or one that falls with the entropy of the target's probs, whichever is lower. Of all paths
whose tokens pass, the longest is taken, of equal ones the likeliest; the token after it is the
target's best, so that a token is always emitted. At temperature 0 only the best token has any
probability and this is the greedy walk. The public code passes the two constants swapped in one of
its helper functions; these are the ones of its generation loop.
"""

import math
from dataclasses import dataclass
from functools import cache
from typing import ClassVar

import numpy as np

from sapwood.common.uncertainty import entropy
from sapwood.core.part import Part, between
from sapwood.core.protocols import TargetProbs
from sapwood.core.rng import Rng
from sapwood.core.tree import ROOT, Tree
from sapwood.core.types import Draw, Guarantee, Verdict


@dataclass
class Typical(Part):
    """LOSSY: accept the longest path of tokens that are typical of the target's probs."""

    floor: float = 0.09  # probability that always passes
    share: float = 0.3  # of exp(-entropy): probability that passes where the target is uncertain
    # the token after the path is the target's best; false: drawn as plain decoding would
    best: bool = True

    paper: ClassVar[str] = "2401.10774"
    accepts: ClassVar[frozenset[Draw]] = frozenset(Draw)
    guarantee: ClassVar[Guarantee] = Guarantee.LOSSY
    reads_q: ClassVar[bool] = False

    def __post_init__(self) -> None:
        between(0, 1, floor=self.floor, share=self.share)

    def verify(self, tree: Tree, target: TargetProbs, position: int, rng: Rng) -> Verdict:
        """The longest typical path, and the target's token after it."""
        probs = cache(target.probs)
        least = cache(lambda node: min(self.floor, self.share * math.exp(-entropy(probs(node)))))
        passed = {ROOT: 0.0}  # node -> log-probability of its path
        for node in range(1, len(tree)):
            parent = int(tree.parents[node])
            if parent in passed and (chance := float(probs(parent)[tree.tokens[node]])) > least(
                parent
            ):
                passed[node] = passed[parent] + math.log(chance)
        end = max(passed, key=lambda node: (tree.depths[node], passed[node]))
        path = tuple(tree.path(end))
        if self.best and not target.greedy:
            return Verdict(path, int(np.argmax(probs(end))))
        return Verdict(path, target.draw(end, position + len(path), rng))

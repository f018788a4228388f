"""Accept whatever is typical of the target, and take the longest such path.

Medusa's typical acceptance (arXiv 2401.10774): a token passes if its probability exceeds a fixed floor, or one that
falls with the entropy of the target's law, whichever is lower. Of all paths whose tokens pass, the longest is
taken, of equal ones the likeliest; the token after it is the target's best, so that something is always said. At
temperature 0 only the best token has any probability and this is the greedy walk. The public code passes the
two constants swapped in one of its helper functions; these are the ones of its generation loop.
"""

import math
from dataclasses import dataclass
from functools import cache
from typing import ClassVar

import numpy as np

from sapwood.doubt import entropy
from sapwood.part import Part, between
from sapwood.protocols import Laws
from sapwood.records import Draw, Guarantee, Verdict
from sapwood.rng import Rng
from sapwood.tree import ROOT, Tree


@dataclass
class Typical(Part):
    """LOSSY: accept the longest path of tokens that are typical of the target's law."""

    floor: float = 0.09  # probability that always passes
    share: float = 0.3  # of exp(-entropy): what passes where the target is unsure
    best: bool = True  # the token after the path is the target's best; false: drawn as plain decoding would

    paper: ClassVar[str] = "2401.10774"
    accepts: ClassVar[frozenset[Draw]] = frozenset(Draw)
    guarantee: ClassVar[Guarantee] = Guarantee.LOSSY
    reads_q: ClassVar[bool] = False

    def __post_init__(self) -> None:
        between(0, 1, floor=self.floor, share=self.share)

    def verify(self, tree: Tree, laws: Laws, position: int, rng: Rng) -> Verdict:
        """The longest typical path, and the target's token after it."""
        law = cache(laws.law)
        least = cache(lambda node: min(self.floor, self.share * math.exp(-entropy(law(node)))))
        passed = {ROOT: 0.0}  # node -> log-probability of its path
        for node in range(1, len(tree)):
            parent = int(tree.parents[node])
            if parent in passed and (chance := float(law(parent)[tree.tokens[node]])) > least(parent):
                passed[node] = passed[parent] + math.log(chance)
        end = max(passed, key=lambda node: (tree.depths[node], passed[node]))
        path = tuple(tree.path(end))
        if self.best and not laws.greedy:
            return Verdict(path, int(np.argmax(law(end))))
        return Verdict(path, laws.draw(end, position + len(path), rng))

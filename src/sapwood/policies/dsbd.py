"""A beam as wide as the number of its paths that are likely to be accepted.

DSBD (arXiv 2409.16560) speeds up beam sampling: of a level's drafted beams several may be accepted, and
the next level is as wide as the number that will be with enough probability. Beam sampling is another law
than plain decoding's; what is taken over here is the rule for the width, with the estimator's chances
in place of the comparison with the target, and the tree is checked like any other. Beams are tested in turn;
after one is accepted the test begins anew on those that are left, so the number accepted of m follows
P(m, k) = sum over i of b(i) P(m - i, k - 1), where b(i) is the chance that the i-th is the first. The beam is
wide where drafts are trusted and a single path where they are not.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from sapwood.arrays import FloatArray
from sapwood.estimators.binned import Binned
from sapwood.part import at_least, between
from sapwood.policies.beam import Beam
from sapwood.protocols import Estimator, Frontier
from sapwood.records import Budget
from sapwood.tree import Tree


@dataclass
class Dsbd(Beam):
    """A beam that is wide where many of its paths are likely to be accepted, and narrow where few are."""

    beam: int = 6  # widest, >= 1
    narrowest: int = 1
    sure: float = 0.7  # probability with which so many paths must be accepted as the beam is wide
    estimator: Estimator = field(default_factory=Binned)

    paper: ClassVar[str] = "2409.16560"

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(1, narrowest=self.narrowest)
        between(0, 1, sure=self.sure)

    def frontier(self, tree: Tree, budget: Budget) -> Frontier:
        """The best nodes of the deepest level, as many as are likely to be accepted."""
        found = super().frontier(tree, budget)
        chances = [float(tree.reach[node]) for node, _ in found]
        return found[: max(self.narrowest, width(chances, self.sure))]

    def levels(self, budget: Budget) -> None:
        """No shape is known before the tree is grown."""


def width(firsts: Sequence[float], sure: float) -> int:
    """The largest number of beams that are accepted with at least this probability."""
    tails = np.cumsum(accepted(firsts)[::-1])[::-1]  # [k] at least k
    return int(np.flatnonzero(tails >= sure - 1e-12)[-1]) if len(firsts) else 0


def accepted(firsts: Sequence[float]) -> FloatArray:
    """Law of how many of m beams are accepted, [m + 1], from the chance of each to be the first."""
    most, total = len(firsts), max(sum(firsts), 1.0)  # estimates of single nodes may add up to more than one
    firsts = [chance / total for chance in firsts]
    laws = np.zeros((most + 1, most + 1))  # [tested, accepted]
    for tested in range(most + 1):
        laws[tested, 0] = max(1.0 - sum(firsts[:tested]), 0.0)
        for first in range(1, tested + 1):
            laws[tested, 1:] += firsts[first - 1] * laws[tested - first, :-1]
    found: FloatArray = laws[most]
    return found

"""A beam as wide as the number of its paths that are likely to be accepted.

DSBD (arXiv 2409.16560) speeds up beam sampling: of a level's drafted beams several may be accepted,
and the next level is as wide as the number that will be with enough probability. Beam sampling is
another distribution than plain decoding's; only the rule for the width is used here, with the
estimator's probabilities in place of the comparison with the target, and the tree is verified like
any other. Beams are tested in turn; after one is accepted the test begins anew on those that are
left, so the number accepted of m follows P(m, k) = sum over i of b(i) P(m - i, k - 1), where b(i)
is the probability that the i-th is the first. The beam is wide where drafts are likely to be
accepted and a single path where they are not.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from sapwood.core.array_types import FloatArray
from sapwood.core.part import at_least, between
from sapwood.core.protocols import Estimator, Frontier
from sapwood.core.tree import Tree
from sapwood.core.types import Budget
from sapwood.estimators.binned import Binned
from sapwood.policies.beam import Beam


@dataclass
class Dsbd(Beam):
    """A beam as wide as the number of its paths that are likely to be accepted."""

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

    def tree_shape(self, budget: Budget) -> None:
        """None: the shape is not known before the tree is grown."""


def width(firsts: Sequence[float], sure: float) -> int:
    """The largest number of beams that are accepted with at least this probability."""
    tails = np.cumsum(accepted(firsts)[::-1])[::-1]  # [k] at least k
    return int(np.flatnonzero(tails >= sure - 1e-12)[-1]) if len(firsts) else 0


def accepted(firsts: Sequence[float]) -> FloatArray:
    """Probs of the number of accepted beams, [m + 1], from each beam's chance to be the first."""
    # estimates of single nodes may add up to more than one
    most = len(firsts)
    total = max(sum(firsts), 1.0)
    firsts = [chance / total for chance in firsts]
    all_probs = np.zeros((most + 1, most + 1))  # [tested, accepted]
    for tested in range(most + 1):
        all_probs[tested, 0] = max(1.0 - sum(firsts[:tested]), 0.0)
        for first in range(1, tested + 1):
            all_probs[tested, 1:] += firsts[first - 1] * all_probs[tested - first, :-1]
    found: FloatArray = all_probs[most]
    return found

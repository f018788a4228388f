"""One very large tree of the most likely continuations, to be used like a cache.

SpecExec (arXiv 2406.02532): where a pass of the target takes seconds, as from a disk, a tree of
hundreds of nodes costs no more than a token. The best leaves get children, many per draft call,
until no leaf can bring a node among the best; the target's own tokens are then emitted one by one
for as long as they are found in the tree. Each step counts a little less than its probability,
against drafters that are overconfident of long paths. The public code's top-p helper drops the head
of the distribution instead of its tail; here the request's own sampling is used.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from sapwood.core.array_types import FloatArray
from sapwood.core.part import Part, at_least, between
from sapwood.core.protocols import Frontier
from sapwood.core.tree import Tree
from sapwood.core.types import Budget, Prune
from sapwood.estimators.raw import Raw
from sapwood.policies.reach import breadth, entry, ready, value, worth


@dataclass
class SpecExec(Part):
    """A very large tree of the most likely paths, long ones discounted."""

    stride: int = 128  # leaves expanded at a time, >= 1
    fade: float = 0.95  # factor on the probability of each step
    least: float = 4.54e-5  # reach below which nodes are left out

    paper: ClassVar[str] = "2406.02532"
    prunes: ClassVar[Prune] = Prune.NODES

    def __post_init__(self) -> None:
        at_least(1, stride=self.stride)
        between(0.01, 1, fade=self.fade)
        between(0, 1, least=self.least)

    def frontier(self, tree: Tree, budget: Budget) -> Frontier:
        """The best leaves, each with as many children as could be among the best nodes."""
        reach = value(tree, FadingEstimator(self.fade))
        least = max(self.least, budget.floor, budget.draft)
        found = ready(tree, reach, budget, self.stride, least / self.fade)
        least = max(least, entry(reach, budget.nodes))
        asked = [
            (node, breadth(self.fade * float(reach[node]), least, budget.width)) for node in found
        ]
        return [(node, width) for node, width in asked if width]

    def prune(self, tree: Tree, budget: Budget) -> Tree:
        """The best nodes, of at least the least reach."""
        reach = value(tree, FadingEstimator(self.fade))
        return tree.best(min(worth(tree, budget), int(np.sum(reach[1:] >= self.least))))


@dataclass
class FadingEstimator(Raw):
    """The drafter's probability, discounted at each step."""

    by: float

    def chance(self, tree: Tree, start: int) -> FloatArray:
        """Draft probabilities, discounted."""
        found: FloatArray = self.by * tree.probs[start:]
        return found

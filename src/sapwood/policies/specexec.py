"""One very large tree of the most likely continuations, to be used like a cache.

SpecExec (arXiv 2406.02532): where a pass of the target takes seconds, as from a disk, a tree of
hundreds of nodes costs no more than a token. The best leaves get children, many per draft call, until no
leaf can bring a node among the best; the target then says its own tokens one by one for as long as
they are found in the tree. Each step is worth a little less than its probability, against drafters that
are too sure of long paths. The public code's top-p helper drops the head of the law instead of its tail;
here the request's own sampling is used.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from sapwood.arrays import FloatArray
from sapwood.estimators.raw import Raw
from sapwood.part import Part, at_least, between
from sapwood.policies.reach import breadth, entry, ready, value, worth
from sapwood.protocols import Frontier
from sapwood.records import Budget, Prune
from sapwood.tree import Tree


@dataclass
class SpecExec(Part):
    """A very large tree of the most likely paths, long ones marked down."""

    stride: int = 128  # leaves expanded at a time, >= 1
    fade: float = 0.95  # what a step is worth against its probability
    least: float = 4.54e-5  # reach below which nodes are left out

    paper: ClassVar[str] = "2406.02532"
    prunes: ClassVar[Prune] = Prune.NODES

    def __post_init__(self) -> None:
        at_least(1, stride=self.stride)
        between(0.01, 1, fade=self.fade)
        between(0, 1, least=self.least)

    def frontier(self, tree: Tree, budget: Budget) -> Frontier:
        """The best leaves, each with as many children as could be among the best nodes."""
        reach = value(tree, Fading(self.fade))
        least = max(self.least, budget.floor, budget.draft)
        found = ready(tree, reach, budget, self.stride, least / self.fade)
        least = max(least, entry(reach, budget.nodes))
        asked = [(node, breadth(self.fade * float(reach[node]), least, budget.width)) for node in found]
        return [(node, width) for node, width in asked if width]

    def prune(self, tree: Tree, budget: Budget) -> Tree:
        """The best nodes that have the least reach."""
        reach = value(tree, Fading(self.fade))
        return tree.best(min(worth(tree, budget), int(np.sum(reach[1:] >= self.least))))


@dataclass
class Fading(Raw):
    """The drafter's word, a little less of it at each step."""

    by: float

    def chance(self, tree: Tree, start: int) -> FloatArray:
        """Draft probabilities, marked down."""
        found: FloatArray = self.by * tree.probs[start:]
        return found

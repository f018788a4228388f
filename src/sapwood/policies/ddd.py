"""A beam that goes deeper only while it holds enough probability.

Dynamic Depth Decoding (arXiv 2409.00142): the path probabilities of a level's beam add up to the
drafter's probability that the text has not left it. EAGLE-2 always drafts the same number of
levels; here the sum is checked after some of them, and drafting ends when it is too small. The
paper checks only some levels because each check makes a GPU wait.
"""

import math
from dataclasses import dataclass, field
from typing import ClassVar

from sapwood.core.part import at_least, between
from sapwood.core.protocols import Frontier
from sapwood.core.tree import Tree
from sapwood.core.types import Budget
from sapwood.policies.beam import Beam


@dataclass
class Ddd(Beam):
    """A beam that stops going deeper when too little of the probability is left in it."""

    least: float = round(math.exp(-0.3), 4)  # of the beam's probability, to go on
    # depths after which that sum is checked
    looks: list[int] = field(default_factory=lambda: [5, 7, 9])

    paper: ClassVar[str] = "2409.00142"

    def __post_init__(self) -> None:
        super().__post_init__()
        between(0, 1, least=self.least)
        at_least(1, **{f"looks[{index}]": depth for index, depth in enumerate(self.looks)})

    def frontier(self, tree: Tree, budget: Budget) -> Frontier:
        """The best nodes of the deepest level, unless they hold too little probability."""
        found = super().frontier(tree, budget)
        left = sum(float(tree.reach[node]) for node, _ in found)
        return [] if tree.height in self.looks and left < self.least else found

    def tree_shape(self, budget: Budget) -> None:
        """None: the shape is not known before the tree is grown."""

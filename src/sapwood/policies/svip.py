"""Stop after a token that came from an uncertain law.

SVIP (arXiv 2411.18462): the bound of AdaEDL, 1 - sqrt(0.15 H), with a fixed threshold, asked about the law
the newest token came from. That token has been paid for and stays; drafting ends with it.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

from sapwood.doubt import entropy_at
from sapwood.part import between
from sapwood.policies.doubt import Stopping
from sapwood.tree import Tree


@dataclass
class Svip(Stopping):
    """A chain that ends with the first token from a law of much entropy."""

    threshold: float = 0.3  # root of the weighted entropy above which drafting ends
    weight: float = 0.15  # of the entropy; a trait of the pair of models

    paper: ClassVar[str] = "2411.18462"
    reads_laws = True

    def __post_init__(self) -> None:
        between(0, 100, threshold=self.threshold, weight=self.weight)

    def ends(self, tree: Tree, child: int) -> bool:
        """True where the law this token came from is uncertain."""
        return math.sqrt(self.weight * entropy_at(tree, int(tree.parents[child]))) > self.threshold

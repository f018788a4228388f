"""A chain that stops after a token drawn from probs of high entropy.

SVIP (arXiv 2411.18462): the bound of AdaEDL, 1 - sqrt(0.15 H), with a fixed threshold, applied to
the probs the newest token came from. That token is drafted already and stays; drafting ends with
it.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

from sapwood.common.uncertainty import entropy_at
from sapwood.core.part import between
from sapwood.core.tree import Tree
from sapwood.policies.stop_base import StopBase


@dataclass
class Svip(StopBase):
    """A chain that ends with the first token drawn from probs of high entropy."""

    threshold: float = 0.3  # root of the weighted entropy above which drafting ends
    weight: float = 0.15  # of the entropy; depends on the pair of models

    paper: ClassVar[str] = "2411.18462"
    reads_probs = True

    def __post_init__(self) -> None:
        between(0, 100, threshold=self.threshold, weight=self.weight)

    def ends(self, tree: Tree, child: int) -> bool:
        """True when the probs this token came from have high entropy."""
        return math.sqrt(self.weight * entropy_at(tree, int(tree.parents[child]))) > self.threshold

"""A chain that stops after a token where the draft's uncertainty has risen.

An arm of TapOut (arXiv 2511.02017): the root of the entropy, SVIP's measure, is compared with that
of the position before; a rise above a threshold ends the draft with the token. The first position
has nothing to be compared with and goes on.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

from sapwood.common.uncertainty import entropy_at
from sapwood.core.part import between
from sapwood.core.tree import ROOT, Tree
from sapwood.policies.stop_base import StopBase


@dataclass
class SvipDifference(StopBase):
    """A chain that ends with the first token whose probs are more uncertain than those before."""

    threshold: float = 0.2  # rise of the root of the entropy (nats) above which drafting ends

    paper: ClassVar[str] = "2511.02017"
    reads_probs = True

    def __post_init__(self) -> None:
        between(0, 100, threshold=self.threshold)

    def ends(self, tree: Tree, child: int) -> bool:
        """True when the probs this token came from are more uncertain than its parent's."""
        parent = int(tree.parents[child])
        if parent == ROOT:
            return False
        before = math.sqrt(entropy_at(tree, int(tree.parents[parent])))
        return math.sqrt(entropy_at(tree, parent)) - before > self.threshold

"""Expected tokens of trees of each shape that rounds on a device may have.

Every drafted tree that comes to the host tells the gain of all shapes within it: the summed reach
of its best nodes, by their number and by the depth they may have. Deeper shapes than it follow the
gain of the deepest one that it tells of.
"""

from bisect import bisect_right
from collections.abc import Sequence

import numpy as np

from sapwood.core.array_types import FloatArray
from sapwood.core.device_rounds import DEPTHS, SIZES
from sapwood.core.tree import Tree

RECENT = 16  # trees in the means


class RoundGains:
    """Mean summed reach of recent trees, [sizes, depths]."""

    def __init__(self) -> None:
        self.trees = 0
        self.means: FloatArray = np.zeros((len(SIZES), len(DEPTHS)))

    def observe(self, grown: Tree) -> None:
        """Add a tree as it was drafted."""
        found = table(grown)
        if found is None:
            return
        if not self.trees:
            self.means = found
        else:
            told = index_of(int(grown.depths.max()), DEPTHS)
            before = self.means[:, told : told + 1]
            scale = np.divide(
                found[:, told : told + 1], before, where=before > 0, out=np.ones_like(before)
            )
            found[:, told + 1 :] = self.means[:, told + 1 :] * scale
            self.means += (found - self.means) / min(self.trees + 1, RECENT)
        self.trees += 1

    def expected(self, nodes: int, depth: int) -> float:
        """Drafted tokens that the target is expected to take of such a tree."""
        return float(self.means[index_of(nodes, SIZES), index_of(depth, DEPTHS)])


def index_of(number: int, steps: Sequence[int]) -> int:
    """Index of the last step that is not above a number."""
    return max(bisect_right(steps, number) - 1, 0)


def table(grown: Tree) -> FloatArray | None:
    """Summed reach of the best nodes of a tree, [sizes, depths]; None of a root alone."""
    if len(grown) == 1:
        return None
    order = np.argsort(-grown.reach[1:], kind="stable")
    reach = grown.reach[1:][order]
    depths = grown.depths[1:][order]
    found = np.zeros((len(SIZES), len(DEPTHS)))
    for place, depth in enumerate(DEPTHS):
        sums = np.cumsum(reach[depths <= depth])
        if len(sums):
            found[:, place] = sums[np.minimum(SIZES, len(sums)) - 1]
    return found

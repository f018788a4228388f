"""Mean reach and seconds of recent whole trees, by which the next one is sized.

Growing step by step, a policy looks at the present tree and stops where the next node does not pay.
The shape of a whole tree is set beforehand, from the mean of the last trees: the reach of their
n-th best node gives how many nodes pay for their rows, the reach at each depth how many levels pay
for their drafting, and the seconds of trees of several depths the price of a level. A level is
stored as its share of the one above, so that results of deep trees carry over to easier or harder
text. Depths that were not tried lately are extrapolated from the last ones, so that they are tried
again. Reach is the drafter's own probability, which understates first choices, and more so at
greater depth: it is corrected by the acceptance observed at each depth.
"""

import math
import operator
from itertools import accumulate, pairwise

import numpy as np

from sapwood.core.tree import CAPACITY
from sapwood.core.types import AcceptanceRatio, Budget, Outcome

RECENT = 6  # rounds in the means: texts change their nature every few dozen rounds
BEAM = 10  # least leaves per level where a device builds the tree: there rows cost almost nothing
STALE = 100  # rounds after which statistics of a depth are no longer used
FIRST = 3  # rounds before the seconds of drafting are known
BEGIN = 6  # depth of their trees
FADE = 0.8  # reach of a level against the one above, before two levels were seen
# trees of a depth before its seconds are used: the first ones may wait for its preparation, which
# can take seconds
SURE = 3
# how fast the seconds of a depth follow a slower round, and a quicker one
SLOW = 0.1
QUICK = 0.5
MISHAP = 4.0  # a round's seconds are clipped at this multiple of the usual ones
# depths of trees: a device prepares for each, so they are few
STEPS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
# nodes of trees, likewise; with the root, rows of a pass
SIZES = (1, 3, 7, 15, 31, 63, 127, 255, 511)


class WholeTreeStats:
    """Mean reach and seconds of the last whole trees, by rank and by depth."""

    def __init__(self) -> None:
        self.rounds = 0
        self.ranked = np.zeros(CAPACITY)  # [n] of the n + 1st best node
        self.gains = self.ranked  # [n] of the n + 1 best together
        # mean reach at depths 1, 2, ..., and at the level above in the same trees
        self.levels: list[tuple[float, float]] = []
        self.counts: list[int] = []  # rounds in each of these means
        self.latest: list[int] = []  # the last round that tried each depth
        # accepted against predicted at each depth
        self.promises: list[AcceptanceRatio] = []
        self.promise = AcceptanceRatio()  # accepted against predicted tokens of whole trees
        # depth -> number of trees, seconds of drafting one
        self.seconds: dict[int, tuple[int, float]] = {}
        self.level = 0.0  # seconds of one more level; 0 while unknown

    def observe(self, outcome: Outcome) -> None:
        """Add a whole tree to the statistics."""
        grown, tree = outcome.grown, outcome.tree
        if grown.pruned is None:
            return
        self.rounds += 1
        best = np.sort(grown.reach[1:])[::-1]
        rate = 1 / min(self.rounds, RECENT)
        self.ranked *= 1 - rate
        self.ranked[: len(best)] += rate * best
        self.gains = np.cumsum(self.ranked)
        deepest = int(grown.depths.max())
        # of all checked nodes at each depth
        reach = np.bincount(tree.depths, tree.reach, deepest + 1).tolist()
        for depth, (above, here) in enumerate(pairwise(reach)):
            self._mean(depth, here, above)
            self.promises[depth].add(here, float(outcome.verdict.accepted > depth))
        self.promise.add(sum(reach[1:]), outcome.verdict.accepted)
        self._time(deepest, outcome.times.draft)

    def _mean(self, depth: int, here: float, above: float) -> None:
        """Add the reach of a level and of the one above to their means; 0: the root's children."""
        if depth == len(self.levels):
            self.levels.append((0.0, 0.0))
            self.counts.append(0)
            self.latest.append(0)
            self.promises.append(AcceptanceRatio())
        self.counts[depth] += 1
        self.latest[depth] = self.rounds
        share, (mine, over) = 1 / min(self.counts[depth], RECENT), self.levels[depth]
        self.levels[depth] = mine + share * (here - mine), over + share * (above - over)

    def _time(self, depth: int, seconds: float) -> None:
        """Add the seconds of drafting a tree of this depth."""
        trees, usual = self.seconds.get(depth, (0, seconds))
        seconds = min(seconds, MISHAP * usual)
        usual += (SLOW if seconds > usual else 1.0 if trees < SURE else QUICK) * (seconds - usual)
        self.seconds[depth] = trees + 1, usual
        known = [(depth, usual) for depth, (trees, usual) in self.seconds.items() if trees >= SURE]
        if known:
            # starting a tree takes time too: a level takes less than its share
            share = min(usual / depth for depth, usual in known)
            self.level = min(max(slope(known), share / 4), share) if len(known) > 1 else share

    def price(self, budget: Budget, beam: int) -> float:
        """Tokens that a level must bring to pay for its drafting."""
        return budget.rate * self.level if budget.rate and self.level else beam * budget.draft

    def size(self, budget: Budget) -> int:
        """Nodes that bring the most tokens over the price of their pass, at least one."""
        if budget.price is None or not self.rounds:
            return budget.nodes
        able = np.array([size for size in SIZES if size < budget.nodes] + [budget.nodes])
        return int(able[np.argmax(self.promise.ratio * self.gains[able - 1] - budget.price[able])])

    def hope(self, nodes: int) -> float:
        """Tokens that a tree of so many nodes is expected to bring; inf before the first."""
        return self.promise.ratio * float(self.gains[nodes - 1]) if self.rounds else math.inf

    def depth(self, budget: Budget, level: float) -> int:
        """Levels that bring the most tokens over `level`, the price of each, at least one."""
        if budget.price is not None and self.rounds < FIRST:
            return min(budget.depth, BEGIN)
        if not level:
            return budget.depth
        total = 0.0
        best = -math.inf
        found = 1
        for depth, reach in enumerate(self.expected(budget.depth), 1):
            total += reach - level
            if total > best and depth in STEPS:
                best, found = total, depth
        return found

    def expected(self, most: int) -> list[float]:
        """Expected reach of levels 1 to `most`, from each level's mean share of the one above."""
        since = self.rounds - STALE  # a tree of some depth also tried all smaller depths
        fresh = next(
            (depth for depth, latest in enumerate(self.latest) if latest <= since), len(self.levels)
        )
        shares = [
            here / above if above > 0 else 0.0 for here, above in self.levels[: min(fresh, most)]
        ] or [1.0]
        beyond = min(shares[-1], 1.0) if len(shares) > 1 else FADE
        reach = accumulate(shares + [beyond] * (most - len(shares)), operator.mul)
        kept = [promise.ratio for promise in self.promises[: len(shares)]] or [1.0]
        return [
            each * kept[min(depth, len(kept) - 1)]
            for depth, each in zip(range(most), reach, strict=False)
        ]


def slope(points: list[tuple[int, float]]) -> float:
    """Slope of the least-squares line through these points."""
    middle = sum(x for x, _ in points) / len(points)
    return sum((x - middle) * y for x, y in points) / sum((x - middle) ** 2 for x, _ in points)

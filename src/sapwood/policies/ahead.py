"""What nodes were worth lately, by size and by depth: for trees whose shape is set before they are grown.

Step by step, a policy looks at the tree in hand and stops where the next node does not pay. A tree that is
grown whole is shaped beforehand, so the look goes to the mean of the last trees: the reach of their n-th
best node says how many nodes pay for their rows, the reach at each depth how many levels pay for their
drafting, and the seconds of trees of several depths what a level takes. A level is remembered by its share of
the one above, so that what deep trees showed on one text holds on the next, which may be easier. Depths that
were not tried lately are expected to go on as the last ones did, so that they are tried again. Reach is the
drafter's own word, which understates first choices the more the deeper they lie: it is corrected by what was
accepted at each depth.
"""

import math
import operator
from itertools import accumulate, pairwise

import numpy as np

from sapwood.promise import Promise
from sapwood.records import Budget, Outcome
from sapwood.tree import CAPACITY

RECENT = 6  # rounds that the means look back: texts change their nature every few dozen rounds
BEAM = 10  # least leaves a level where a device grows: there rows cost next to nothing
STALE = 100  # rounds after which what was seen at a depth says nothing about it any more
FIRST = 3  # rounds that do not know yet what drafting takes
BEGIN = 6  # depth of their trees
FADE = 0.8  # reach of a level against the one above, before two levels were seen
SURE = (
    3  # trees of a depth after which its seconds count: the first ones are grown while it is prepared, some for seconds
)
SLOW, QUICK = 0.1, 0.5  # how fast the seconds of a depth follow a slower round, and a quicker one
MISHAP = 4.0  # a round that takes more than so many times as long counts as so many
STEPS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)  # depths of trees: a device prepares for each, so they are few
SIZES = (1, 3, 7, 15, 31, 63, 127, 255, 511)  # nodes of trees, likewise: with the root, rows of a pass


class Ahead:
    """Mean reach of the last whole trees, by rank and by depth."""

    def __init__(self) -> None:
        self.rounds = 0
        self.ranked = np.zeros(CAPACITY)  # [n] of the n + 1st best node
        self.gains = self.ranked  # [n] of the n + 1 best together
        self.levels: list[tuple[float, float]] = []  # mean reach at depths 1, 2, ..., and one above in the same trees
        self.counts: list[int] = []  # rounds in each of these means
        self.latest: list[int] = []  # the last round that tried each depth
        self.promises: list[Promise] = []  # reach at each depth, and how often the path came there
        self.promise = Promise()  # reach of whole trees, and drafted tokens accepted
        self.seconds: dict[int, tuple[int, float]] = {}  # depth -> trees, and what drafting one takes
        self.level = 0.0  # seconds of one more level; 0 where that is not known yet

    def observe(self, outcome: Outcome) -> None:
        """Take in a tree that was grown whole."""
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
        reach = np.bincount(tree.depths, tree.reach, deepest + 1).tolist()  # of all checked nodes at each depth
        for depth, (above, here) in enumerate(pairwise(reach)):
            self._mean(depth, here, above)
            self.promises[depth].take(here, float(outcome.verdict.accepted > depth))
        self.promise.take(sum(reach[1:]), outcome.verdict.accepted)
        self._time(deepest, outcome.times.draft)

    def _mean(self, depth: int, here: float, above: float) -> None:
        """Take the reach of one level and that above into their means; depth 0 are the children of the root."""
        if depth == len(self.levels):
            self.levels.append((0.0, 0.0))
            self.counts.append(0)
            self.latest.append(0)
            self.promises.append(Promise())
        self.counts[depth] += 1
        self.latest[depth] = self.rounds
        share, (mine, over) = 1 / min(self.counts[depth], RECENT), self.levels[depth]
        self.levels[depth] = mine + share * (here - mine), over + share * (above - over)

    def _time(self, depth: int, seconds: float) -> None:
        """Take in what drafting a tree of this depth took."""
        trees, usual = self.seconds.get(depth, (0, seconds))
        seconds = min(seconds, MISHAP * usual)
        usual += (SLOW if seconds > usual else 1.0 if trees < SURE else QUICK) * (seconds - usual)
        self.seconds[depth] = trees + 1, usual
        known = [(depth, usual) for depth, (trees, usual) in self.seconds.items() if trees >= SURE]
        if known:
            share = min(usual / depth for depth, usual in known)  # beginning takes time too: a level takes less
            self.level = min(max(slope(known), share / 4), share) if len(known) > 1 else share

    def price(self, budget: Budget, beam: int) -> float:
        """Tokens that a level must bring to pay for its drafting."""
        return budget.rate * self.level if budget.rate and self.level else beam * budget.draft

    def size(self, budget: Budget) -> int:
        """Nodes that bring the most tokens over the price of their pass, at least one."""
        if budget.price is None or not self.rounds:
            return budget.nodes
        able = np.array([size for size in SIZES if size < budget.nodes] + [budget.nodes])
        return int(able[np.argmax(self.promise.kept * self.gains[able - 1] - budget.price[able])])

    def hope(self, nodes: int) -> float:
        """Drafted tokens that a tree of so many nodes is expected to bring; no end of them before any was seen."""
        return self.promise.kept * float(self.gains[nodes - 1]) if self.rounds else math.inf

    def depth(self, budget: Budget, level: float) -> int:
        """Levels that bring the most tokens over `level`, the price of each, at least one."""
        if budget.price is not None and self.rounds < FIRST:
            return min(budget.depth, BEGIN)
        if not level:
            return budget.depth
        total, best, found = 0.0, -math.inf, 1
        for depth, reach in enumerate(self.expected(budget.depth), 1):
            total += reach - level
            if total > best and depth in STEPS:
                best, found = total, depth
        return found

    def expected(self, most: int) -> list[float]:
        """Reach of the levels from 1 to `most`, each as its share of the one above was when both were tried."""
        since = self.rounds - STALE  # whoever tried a depth tried all above it
        fresh = next((depth for depth, latest in enumerate(self.latest) if latest <= since), len(self.levels))
        shares = [here / above if above > 0 else 0.0 for here, above in self.levels[: min(fresh, most)]] or [1.0]
        beyond = min(shares[-1], 1.0) if len(shares) > 1 else FADE
        reach = accumulate(shares + [beyond] * (most - len(shares)), operator.mul)
        kept = [promise.kept for promise in self.promises[: len(shares)]] or [1.0]
        return [each * kept[min(depth, len(kept) - 1)] for depth, each in zip(range(most), reach, strict=False)]


def slope(points: list[tuple[int, float]]) -> float:
    """Of the straight line through these points that errs least."""
    middle = sum(x for x, _ in points) / len(points)
    return sum((x - middle) * y for x, y in points) / sum((x - middle) ** 2 for x, _ in points)

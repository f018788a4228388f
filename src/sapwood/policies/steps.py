"""Whether one more level of a tree pays: for trees that grow step by step.

A drafter that is a model answers about eight nodes in nearly the time of one, so what is paid for is the
level, not the node. And a node that is expanded does not bring its own reach but that of its best child, less
the price of the child's row. Both are learned while decoding: the seconds of a level from how long trees of
more and of fewer levels took, the chance of a best child from the last nodes that were expanded. Where several
drafters share a tree, levels that only the first ones answered are not counted: those look things up. Where several
requests share a pass, one of them finds out for all what a best child is like just now.
"""

import numpy as np

from sapwood.arrays import FloatArray
from sapwood.policies.reach import ready
from sapwood.records import Budget, Counts, Outcome, Terms
from sapwood.tree import AIDS, Tree

DRAFTERS = (1 << AIDS) - 1  # what a request knows by itself takes no time
FADE = 0.97  # weight that a round's seconds keep after the next one
RECENT = 20  # expanded nodes that the chance of a best child looks back; rounds without any that make it forget
STALE = 100  # rounds without an expanded node after which what a level takes is measured anew
EVEN = 0.25  # variance of the number of levels below which trees are much alike, and no slope can be seen
LEAST = 0.25  # of its share of a round's seconds, that a level takes at least
MISHAP = 4.0  # a round that takes more than so many times the usual was interrupted


class Steps:
    """Seconds of one more level, and the chance of the best child that a node gets in it."""

    def __init__(self) -> None:
        self.seconds = 0.0  # of one more level; 0 where that is not known yet
        self.chance = 1.0  # mean, of the best child of an expanded node
        self.nodes = 0  # in that mean
        self.trial: object = None  # whose trees are grown to begin that mean
        self.idle = 0.0  # rounds since a node was last expanded
        self.last = 0  # largest set of sources seen: its highest bit is the last drafter
        self.sums = [0.0] * 5  # faded: rounds, levels, seconds, levels squared, levels times seconds
        self.line = 0.0, 0.0  # seconds of beginning a tree and of a level, when trees were last unlike each other

    def choose(self, tree: Tree, reach: FloatArray, budget: Budget, stride: int, owner: object) -> list[int]:
        """The leaves to expand together, best first, at most `stride`; none where that would not pay."""
        if self._waits(owner):
            return []
        least = toll(tree, budget, stride)
        able = ready(tree, reach, budget, stride, least / max(self.chance, 1e-9))
        gain = sum(float(reach[node]) * self.chance - least for node in able)
        return able if gain > budget.rate * self.seconds else []

    def _waits(self, owner: object) -> bool:
        """True where nobody knows what a best child is like, and another is finding out."""
        if self.nodes:
            return False
        self.trial = self.trial or owner
        return owner is not self.trial

    def terms(self, budget: Budget, stride: int, counts: Counts, owner: object) -> Terms | None:
        """What `choose` goes by, for a drafter that can do the same by itself; None where its tree has to wait."""
        waits = self._waits(owner)
        return None if waits else Terms(budget, stride, counts, self.chance, budget.rate * self.seconds)

    def observe(self, outcome: Outcome, *, first: bool) -> None:
        """Take in a round; the first of a request spent its seconds on the prompt as well."""
        grown, self.trial = outcome.grown, None
        expanded = np.flatnonzero(grown.expanded)
        if not len(expanded):
            self.idle += 1 / outcome.trees
            if self.idle >= RECENT:  # the text has moved on: see what it is like now
                self.chance, self.nodes = 1.0, 0
            if self.idle >= STALE:  # so may have the machine, which was perhaps busy when it was measured
                self.sums, self.line, self.seconds, self.idle = [0.0] * 5, (0.0, 0.0), 0.0, 0.0
            return
        self.idle = 0.0
        if grown.valued == len(grown):
            self._mean(grown, expanded)
        levels = self._answered(grown)
        if levels and not first:
            self._time(levels, outcome.times.draft)

    def _mean(self, grown: Tree, expanded: np.ndarray) -> None:
        """Take the best child of each expanded node into the mean."""
        best = np.zeros(len(grown))
        np.maximum.at(best, grown.parents[1:], grown.reach[1:])
        for share in (best[expanded] / np.maximum(grown.reach[expanded], 1e-9)).tolist():
            self.nodes += 1
            self.chance += (share - self.chance) / min(self.nodes, RECENT)

    def _answered(self, grown: Tree) -> int:
        """Levels on which the last drafter was asked and had an answer."""
        sources: list[int] = grown.sources.tolist()
        self.last = max(self.last, *(source & DRAFTERS for source in sources))
        drafter = 1 << max(self.last.bit_length() - 1, 0)
        answers = zip(sources, grown.depths.tolist(), strict=True)
        return len({depth for source, depth in answers if source & drafter})

    def _time(self, levels: int, seconds: float) -> None:
        """Take in what so many levels took, and draw the line through all rounds anew.

        Where all trees are alike it is the last one, as much higher or lower as rounds take longer or shorter now:
        their whole share would be too dear a price, at which trees stay as they are for good.
        """
        rounds, _, spent, _, _ = self.sums
        if rounds > 1:
            seconds = min(seconds, MISHAP * spent / rounds)
        news = (1, levels, seconds, levels * levels, levels * seconds)
        self.sums = [FADE * old + new for old, new in zip(self.sums, news, strict=True)]
        rounds, many, spent, squares, products = self.sums
        share, mean = spent / many, many / rounds
        variance = squares / rounds - mean**2
        if variance > EVEN:
            slope = (products - many * spent / rounds) / rounds / variance
            slope = min(max(slope, LEAST * share), share)  # beginning takes time too: a level takes less than its share
            self.line = (share - slope) * mean, slope
        begin, slope = self.line
        if slope:
            self.seconds = slope * share * mean / (begin + slope * mean)
        else:  # cheap, so that deeper trees come and tell
            self.seconds = LEAST * share


def toll(tree: Tree, budget: Budget, most: int) -> float:
    """Reach from which on further nodes, at most so many, make the tree worth more than it is.

    They pay for rows of their own or take the place of weaker nodes; on a staircase several may pay where one
    does not, so all numbers of own nodes and of further ones are looked at.
    """
    if budget.price is None:
        return 0.0
    price = np.append(budget.price[: budget.nodes + 1], [np.inf] * most)  # beyond the budget nothing pays
    gain = np.append(0.0, np.cumsum(np.sort(tree.reach[1:])[::-1][: budget.nodes]))  # [own] of the best so many
    own, further = np.arange(len(gain))[:, None], np.arange(1, most + 1)
    best = float(np.max(gain - price[: len(gain)]))
    return float(np.min((best + price[own + further] - gain[:, None]) / further))

"""Price of one more level of a tree, for trees that grow level by level.

A draft model expands eight nodes in nearly the time of one, so the level is what costs time, not
the node. And an expanded node does not bring its own reach but that of its best child, less the
price of the child's row. Both are learned while decoding: the seconds of a level from how long
trees of more and of fewer levels took, the chance of a best child from the last expanded nodes.
Where several drafters share a tree, levels to which only the first ones added nodes are not
counted: those are lookups. Where several requests share a pass, one of them measures the chance of
a best child for all.
"""

import numpy as np

from sapwood.core.array_types import FloatArray
from sapwood.core.tree import HINTS, Tree
from sapwood.core.types import AcceptanceCounts, Budget, GrowthRule, Outcome
from sapwood.policies.reach import ready

DRAFTERS = (1 << HINTS) - 1  # bits of drafters that take time; hints of a request take none
FADE = 0.97  # weight that a round's seconds keep after the next one
# expanded nodes in the mean chance of a best child; rounds without any after which it is reset
RECENT = 20
STALE = 100  # rounds without an expanded node after which what a level takes is measured anew
# variance of the number of levels below which trees are too similar to fit a slope
EVEN = 0.25
LEAST = 0.25  # least seconds of a level, as a fraction of its share of a round's seconds
MISHAP = 4.0  # a round's seconds are clipped at this multiple of the usual ones


class LevelPrice:
    """Seconds of one more level, and the chance of the best child that a node gets in it."""

    def __init__(self) -> None:
        self.seconds = 0.0  # of one more level; 0 while unknown
        self.chance = 1.0  # mean, of the best child of an expanded node
        self.nodes = 0  # in that mean
        self.trial: object = None  # the policy whose trees begin that mean
        self.idle = 0.0  # rounds since a node was last expanded
        self.last = 0  # largest set of sources seen: its highest bit is the last drafter
        # decayed sums: rounds, levels, seconds, levels squared, levels times seconds
        self.sums = [0.0] * 5
        # seconds of starting a tree and of a level, from the last fit over differing trees
        self.line = (0.0, 0.0)

    def choose(
        self, tree: Tree, reach: FloatArray, budget: Budget, stride: int, owner: object
    ) -> list[int]:
        """The leaves to expand together, best first, at most `stride`; none if it does not pay."""
        if self._waits(owner):
            return []
        least = least_reach(tree, budget, stride)
        able = ready(tree, reach, budget, stride, least / max(self.chance, 1e-9))
        gain = sum(float(reach[node]) * self.chance - least for node in able)
        # a tree that came with one call has cost its time already
        price = 0.0 if tree.one_call else budget.rate * self.seconds
        return able if gain > price else []

    def _waits(self, owner: object) -> bool:
        """True while the chance of a best child is unknown and another owner is measuring it."""
        if self.nodes:
            return False
        self.trial = self.trial or owner
        return owner is not self.trial

    def terms(
        self, budget: Budget, stride: int, counts: AcceptanceCounts, owner: object
    ) -> GrowthRule | None:
        """The rule of `choose`, for drafters that apply it themselves; None while `owner` waits."""
        waits = self._waits(owner)
        return (
            None
            if waits
            else GrowthRule(budget, stride, counts, self.chance, budget.rate * self.seconds)
        )

    def observe(self, outcome: Outcome, *, first: bool) -> None:
        """Learn from a round; the first of a request is not timed, as it includes prefill."""
        grown, self.trial = outcome.grown, None
        expanded = np.flatnonzero(grown.expanded)
        if not len(expanded):
            self.rest(outcome.trees)
            return
        self.idle = 0.0
        if grown.valued == len(grown):
            self._mean(grown, expanded)
        levels = self._answered(grown)
        if levels and not first:
            self._time(1 if grown.one_call else levels, outcome.times.draft)

    def rest(self, trees: int) -> None:
        """Count a round without an expanded node, of one of so many requests."""
        self.trial = None
        self.idle += 1 / trees
        if self.idle >= RECENT:  # the text may have changed: measure again
            self.chance = 1.0
            self.nodes = 0
        if self.idle >= STALE:  # the load of the machine may have changed too
            self.sums = [0.0] * 5
            self.line = (0.0, 0.0)
            self.seconds = 0.0
            self.idle = 0.0

    def _mean(self, grown: Tree, expanded: np.ndarray) -> None:
        """Add the best child of each expanded node to the mean."""
        best = np.zeros(len(grown))
        np.maximum.at(best, grown.parents[1:], grown.reach[1:])
        for share in (best[expanded] / np.maximum(grown.reach[expanded], 1e-9)).tolist():
            self.nodes += 1
            self.chance += (share - self.chance) / min(self.nodes, RECENT)

    def _answered(self, grown: Tree) -> int:
        """Number of levels to which the last drafter added nodes."""
        sources: list[int] = grown.sources.tolist()
        self.last = max(self.last, *(source & DRAFTERS for source in sources))
        drafter = 1 << max(self.last.bit_length() - 1, 0)
        answers = zip(sources, grown.depths.tolist(), strict=True)
        return len({depth for source, depth in answers if source & drafter})

    def _time(self, levels: int, seconds: float) -> None:
        """Add the seconds of a tree of so many levels, and fit the line through all rounds again.

        While all trees have the same depth the last line is kept, scaled to the present seconds of
        a round: charging a level its whole share would be too high a price, at which trees would
        never change their depth.
        """
        rounds, _, spent, _, _ = self.sums
        if rounds > 1:
            seconds = min(seconds, MISHAP * spent / rounds)
        news = (1, levels, seconds, levels * levels, levels * seconds)
        self.sums = [FADE * old + new for old, new in zip(self.sums, news, strict=True)]
        rounds, many, spent, squares, products = self.sums
        share = spent / many
        mean = many / rounds
        variance = squares / rounds - mean**2
        if variance > EVEN:
            slope = (products - many * spent / rounds) / rounds / variance
            # starting a tree takes time too: a level takes less than its share
            slope = min(max(slope, LEAST * share), share)
            self.line = (share - slope) * mean, slope
        begin, slope = self.line
        if slope:
            self.seconds = slope * share * mean / (begin + slope * mean)
        else:  # a low price, so that deeper trees are tried and measured
            self.seconds = LEAST * share


def least_reach(tree: Tree, budget: Budget, most: int) -> float:
    """Least mean reach at which up to `most` further nodes increase the value of the tree.

    They pay for rows of their own or replace weaker nodes; with a stepwise price several may pay
    where one does not, so all numbers of present nodes and of further ones are compared.
    """
    if budget.price is None:
        return 0.0
    # beyond the budget nothing pays
    price = np.append(budget.price[: budget.nodes + 1], [np.inf] * most)
    # [own] summed reach of the best `own` nodes
    gain = np.append(0.0, np.cumsum(np.sort(tree.reach[1:])[::-1][: budget.nodes]))
    own = np.arange(len(gain))[:, None]
    further = np.arange(1, most + 1)
    best = float(np.max(gain - price[: len(gain)]))
    return float(np.min((best + price[own + further] - gain[:, None]) / further))

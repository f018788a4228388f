"""Breadth, depth and size of the tree by what they bring for what they take.

CAST (arXiv 2510.26577) compares three times. How many nodes of a level are expanded: as many as gain
path probability faster than drafting them takes time. Whether another level is drafted: if the mass that
levels at this depth lately passed on to the next pays for it. How many nodes are checked: as many as gain
faster than their rows of the pass take. Seconds come from the machine's cost curve and from the last
rounds' drafting. The paper compares with constants that are tuned by hand; here a second is worth the
tokens that it brings at present, as the controller counts them (`goodput`), and the options ask for a
multiple of that. A controller that counts no seconds leaves a plain beam. Costs have steps, so each choice
looks at all numbers of nodes rather than stop at the first that does not pay.
"""

from collections import defaultdict, deque
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from sapwood.estimators.raw import Raw
from sapwood.part import Part, at_least, between
from sapwood.policies.pace import Pace
from sapwood.policies.reach import front, value, worth
from sapwood.protocols import Estimator, Frontier, Request, Setting
from sapwood.records import Budget, Outcome, Prune
from sapwood.tree import Tree

STALE = 100  # rounds after which what a depth passed on is forgotten, so that it is tried again


@dataclass
class Cast(Part):
    """Expand, deepen and check as long as the expected gain is worth its seconds."""

    beam: int = 10  # most nodes expanded per level, >= 1
    recent: int = 16  # rounds whose levels foretell the next one's gain, >= 1
    breadth: float = 1.0  # gain asked of expanding a node, in multiples of what its seconds are worth
    depth: float = 1.0  # the same of another level
    size: float = 1.0  # the same of checking a node
    estimator: Estimator = field(default_factory=Raw)

    paper: ClassVar[str] = "2510.26577"
    prunes: ClassVar[Prune] = Prune.NODES

    def __post_init__(self) -> None:
        at_least(1, beam=self.beam, recent=self.recent)
        between(0, 1000, breadth=self.breadth, depth=self.depth, size=self.size)

    def bind(self, setting: Setting) -> None:
        """Begin to watch drafting; what is seen is shared by all requests."""
        super().bind(setting)
        self.pace, self.passed = Pace(), Passed(self.recent)

    def reset(self, request: Request) -> None:
        """Begin a request."""
        super().reset(request)
        self.begun_ = False

    def frontier(self, tree: Tree, budget: Budget) -> Frontier:
        """As many of the deepest level's best nodes as pay, unless the level does not."""
        if tree.height >= budget.depth:
            return []
        reach = value(tree, self.estimator)
        able = front(tree, reach, self.beam)
        if not able:
            return []
        gains = np.cumsum(reach[able])
        costs = budget.rate * np.array([self.pace.seconds(count) for count in range(1, len(able) + 1)])
        count = int(np.argmax(gains - self.breadth * costs)) + 1
        if self.passed.share(tree.height) * gains[count - 1] < self.depth * costs[count - 1]:
            return []
        return [(node, budget.width) for node in able[:count]]

    def prune(self, tree: Tree, budget: Budget) -> Tree:
        """As many of the best nodes as pay for their rows."""
        value(tree, self.estimator)
        price = None if budget.price is None else self.size * budget.price
        return tree.best(worth(tree, replace(budget, price=price)))

    def observe(self, outcome: Outcome) -> None:
        """Time the drafting and see what each level passed on; a request's first round read the prompt as well."""
        super().observe(outcome)
        if self.begun_:
            self.pace.observe(outcome)
        self.begun_ = True
        value(outcome.grown, self.estimator)
        self.passed.observe(outcome.grown, self.beam)


class Passed:
    """Which share of a level's expanded mass the best nodes of the next one held, by depth."""

    def __init__(self, recent: int) -> None:
        self.rounds = 0
        self.seen: defaultdict[int, deque[tuple[int, float]]] = defaultdict(lambda: deque(maxlen=recent))

    def share(self, depth: int) -> float:
        """The mean of the last rounds; all of it where nothing was seen lately."""
        fresh = [share for when, share in self.seen[depth] if when > self.rounds - STALE]
        return sum(fresh) / len(fresh) if fresh else 1.0

    def observe(self, grown: Tree, beam: int) -> None:
        """Take in the levels of a tree."""
        self.rounds += 1
        for depth in range(int(grown.depths[grown.expanded].max(initial=-1)) + 1):
            above = float(grown.reach[grown.expanded & (grown.depths == depth)].sum())
            below = np.sort(grown.reach[grown.depths == depth + 1])[::-1][:beam]
            if above > 0:
                self.seen[depth].append((self.rounds, float(below.sum()) / above))

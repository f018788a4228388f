"""Breadth, depth and size of the tree by expected tokens against measured seconds.

CAST (arXiv 2510.26577) makes three comparisons. How many nodes of a level are expanded: as many as
gain path probability faster than drafting them takes time. Whether another level is drafted: if the
mass that levels at this depth lately passed on to the next pays for it. How many nodes are checked:
as many as gain faster than their rows of the pass take. Seconds come from the machine's cost curve
and from the last rounds' drafting. The paper compares with constants that are tuned by hand; here a
second is worth the tokens that it brings at present, as the controller counts them (`goodput`), and
the options ask for a multiple of that. A controller that counts no seconds leaves a plain beam.
Costs have steps, so each choice looks at all numbers of nodes rather than stop at the first that
does not pay.
"""

from collections import defaultdict, deque
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from sapwood.core.part import Part, at_least, between
from sapwood.core.protocols import EngineContext, Estimator, Frontier, RequestContext
from sapwood.core.tree import Tree
from sapwood.core.types import Budget, Outcome, Prune
from sapwood.estimators.raw import Raw
from sapwood.policies.draft_cost_fit import DraftCostFit
from sapwood.policies.reach import front, value, worth

STALE = 100  # rounds after which what a depth passed on is forgotten, so that it is tried again


@dataclass
class Cast(Part):
    """Expand, deepen and check as long as the expected gain is worth its seconds."""

    beam: int = 10  # most nodes expanded per level, >= 1
    recent: int = 16  # rounds whose levels predict the next one's gain, >= 1
    # gain required for expanding a node, in multiples of what its seconds are worth
    breadth: float = 1.0
    depth: float = 1.0  # the same for another level
    size: float = 1.0  # the same for checking a node
    estimator: Estimator = field(default_factory=Raw)

    paper: ClassVar[str] = "2510.26577"
    prunes: ClassVar[Prune] = Prune.NODES

    def __post_init__(self) -> None:
        at_least(1, beam=self.beam, recent=self.recent)
        between(0, 1000, breadth=self.breadth, depth=self.depth, size=self.size)

    def bind(self, setting: EngineContext) -> None:
        """Begin empty statistics of drafting, shared by all requests."""
        super().bind(setting)
        self.pace = DraftCostFit()
        self.passed = PassedShare(self.recent)

    def reset(self, request: RequestContext) -> None:
        """Begin a request."""
        super().reset(request)
        self.begun_ = False

    def frontier(self, tree: Tree, budget: Budget) -> Frontier:
        """The best nodes of the deepest level that pay; none if the level does not."""
        if tree.height >= budget.depth:
            return []
        reach = value(tree, self.estimator)
        able = front(tree, reach, self.beam)
        if not able:
            return []
        gains = np.cumsum(reach[able])
        costs = budget.rate * np.array(
            [self.pace.seconds(count) for count in range(1, len(able) + 1)]
        )
        count = int(np.argmax(gains - self.breadth * costs)) + 1
        if self.passed.share(tree.height) * gains[count - 1] < self.depth * costs[count - 1]:
            return []
        return [(node, budget.width) for node in able[:count]]

    def prune(self, tree: Tree, budget: Budget) -> Tree:
        """Keep the best nodes that pay for their rows."""
        value(tree, self.estimator)
        price = None if budget.price is None else self.size * budget.price
        return tree.best(worth(tree, replace(budget, price=price)))

    def observe(self, outcome: Outcome) -> None:
        """Time the drafting, and record the share of mass each level passed on."""
        super().observe(outcome)
        if self.begun_:  # a request's first round includes the drafter's prefill
            self.pace.observe(outcome)
        self.begun_ = True
        value(outcome.grown, self.estimator)
        self.passed.observe(outcome.grown, self.beam)


class PassedShare:
    """Share of a level's expanded mass that the best nodes of the next level held, by depth."""

    def __init__(self, recent: int) -> None:
        self.rounds = 0
        self.seen: defaultdict[int, deque[tuple[int, float]]] = defaultdict(
            lambda: deque(maxlen=recent)
        )

    def share(self, depth: int) -> float:
        """The mean of the last rounds; 1 when none tried this depth lately."""
        fresh = [share for when, share in self.seen[depth] if when > self.rounds - STALE]
        return sum(fresh) / len(fresh) if fresh else 1.0

    def observe(self, grown: Tree, beam: int) -> None:
        """Record the levels of a tree."""
        self.rounds += 1
        for depth in range(int(grown.depths[grown.expanded].max(initial=-1)) + 1):
            above = float(grown.reach[grown.expanded & (grown.depths == depth)].sum())
            below = np.sort(grown.reach[grown.depths == depth + 1])[::-1][:beam]
            if above > 0:
                self.seen[depth].append((self.rounds, float(below.sum()) / above))

"""Best-first growth until the next node does not pay.

The most likely unexpanded node grows next, so at every size the tree holds the nodes of largest
reach: the set that OPT-Tree (arXiv 2406.17276), DySpec (arXiv 2410.11744) and SpecExec
(arXiv 2406.02532) look for. Growth ends when no further node can enter the tree, can pay for its
row of the pass, or can pay for the drafting itself; the size then maximises expected tokens minus
the price of the pass, over all sizes down to none.
"""

from dataclasses import dataclass, field, replace
from typing import ClassVar

from sapwood.estimators.binned import Binned
from sapwood.part import Part, at_least
from sapwood.policies.ahead import BEAM, STEPS, Ahead
from sapwood.policies.reach import ready, value, worth
from sapwood.policies.steps import Steps
from sapwood.protocols import Estimator, Frontier, Request, Setting
from sapwood.records import Budget, Counts, Levels, Outcome, Prune, Terms
from sapwood.tree import CAPACITY, Tree


@dataclass
class Best(Part):
    """Grow the most likely node next; stop, and cut, where nodes no longer pay."""

    stride: int = 1  # nodes expanded at a time, >= 1; more saves draft passes, fewer saves draft rows
    estimator: Estimator = field(default_factory=Binned)

    paper: ClassVar[str] = "2406.17276"
    prunes: ClassVar[Prune] = Prune.NODES

    def __post_init__(self) -> None:
        at_least(1, stride=self.stride)

    def bind(self, setting: Setting) -> None:
        """Begin without expectations; they are shared by all requests."""
        super().bind(setting)
        self.ahead, self.steps = Ahead(), Steps()

    def reset(self, request: Request) -> None:
        """Begin a request."""
        super().reset(request)
        self.begun_ = False

    def observe(self, outcome: Outcome) -> None:
        """Learn what nodes are worth, for trees that are grown whole, and what levels are, for others."""
        if outcome.grown.pruned is not None:  # valued without the estimator, which has nothing to learn from it
            self.ahead.observe(outcome)
        else:
            super().observe(outcome)
            self.steps.observe(outcome, first=not self.begun_)
        self.begun_ = True

    def levels(self, budget: Budget) -> Levels | None:
        """A shape for a drafter that grows the tree whole: what paid lately; None if the estimator must see it grow.

        Such a tree is valued by the drafter's own word. Measured on an H200: with the counts of `binned` trees were no
        better, and a round took a fifth longer. Where a device grows, children cost next to nothing, as leaves do.
        """
        if getattr(self.estimator, "lines", None) is None:
            return None
        level = self.ahead.price(budget, self._beam)
        depth, nodes = self.ahead.depth(budget, level), self.ahead.size(budget)
        hope, longest = self.ahead.hope(nodes) - depth * level, min(budget.depth, budget.nodes)
        return replace(self._shape(budget, depth, nodes), hope=hope, longest=longest, terms=self._terms(budget))

    def shapes(self, budget: Budget) -> list[Levels]:
        """All shapes that it may ask for within this budget, but for their size: a device prepares for each."""
        return [self._shape(budget, depth, budget.nodes) for depth in STEPS if depth <= budget.depth]

    @property
    def _beam(self) -> int:
        return max(self.stride, BEAM)

    def _shape(self, budget: Budget, depth: int, nodes: int) -> Levels:
        """Levels as wide as such a deep tree can hold; as many children for all depths."""
        width = max(budget.width, self._beam)
        leaves = min(self._beam, (CAPACITY - 1 - width) // (width * max(depth - 1, 1)))
        return Levels(nodes, depth, leaves, width)

    def _terms(self, budget: Budget) -> Terms | None:
        """What `frontier` goes by, for a drafter that can do the same by itself; None if only the estimator can."""
        counts: Counts | None = getattr(self.estimator, "counts", None)
        if counts is None:
            return None
        if budget.rate:
            return self.steps.terms(budget, self.stride, counts, owner=self)
        return Terms(budget, self.stride, counts, least=max(budget.floor, budget.draft))

    def frontier(self, tree: Tree, budget: Budget) -> Frontier:
        """The best leaves whose children could still enter the tree and pay."""
        reach = value(tree, self.estimator)
        if budget.rate:
            able = self.steps.choose(tree, reach, budget, self.stride, owner=self)
        else:
            able = ready(tree, reach, budget, self.stride, max(budget.floor, budget.draft))
        return [(node, budget.width) for node in able]

    def prune(self, tree: Tree, budget: Budget) -> Tree:
        """The best nodes, as many as pay."""
        if tree.priced is not None and tree.priced[0] is budget:
            return tree.priced[1]
        if len(tree) == 1:  # nothing to choose from
            return tree
        value(tree, self.estimator)
        return tree.best(worth(tree, budget))

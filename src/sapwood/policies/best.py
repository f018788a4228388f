"""Best-first growth until the next node does not pay.

The most likely unexpanded node grows next, so at every size the tree holds the nodes of largest
reach: the set that OPT-Tree (arXiv 2406.17276), DySpec (arXiv 2410.11744) and SpecExec
(arXiv 2406.02532) look for. Growth ends when no further node can enter the tree, can pay for its
row of the pass, or can pay for the drafting itself; the size then maximises expected tokens minus
the price of the pass, over all sizes down to none.
"""

from dataclasses import dataclass, field, replace
from typing import ClassVar

from sapwood.core.part import Part, at_least
from sapwood.core.protocols import EngineContext, Estimator, Frontier, RequestContext
from sapwood.core.tree import CAPACITY, Tree
from sapwood.core.types import AcceptanceCounts, Budget, GrowthRule, Outcome, Prune, TreeShape
from sapwood.core.whole_tree import WholeTreePolicy
from sapwood.estimators.binned import Binned
from sapwood.policies.level_price import LevelPrice
from sapwood.policies.reach import ready, value, worth
from sapwood.policies.round_gains import RoundGains
from sapwood.policies.whole_tree_stats import BEAM, STEPS, WholeTreeStats


@dataclass
class Best(Part, WholeTreePolicy):
    """Grow the most likely node next; stop, and prune, where nodes no longer pay."""

    # nodes expanded at a time, >= 1; more saves draft passes, fewer saves draft rows
    stride: int = 1
    estimator: Estimator = field(default_factory=Binned)

    paper: ClassVar[str] = "2406.17276"
    prunes: ClassVar[Prune] = Prune.NODES

    def __post_init__(self) -> None:
        at_least(1, stride=self.stride)

    def bind(self, setting: EngineContext) -> None:
        """Begin with empty statistics, shared by all requests."""
        super().bind(setting)
        self.ahead = WholeTreeStats()
        self.gains = RoundGains()
        self.steps = LevelPrice()

    def reset(self, request: RequestContext) -> None:
        """Begin a request."""
        super().reset(request)
        self.begun_ = False

    def observe(self, outcome: Outcome) -> None:
        """Learn the worth of nodes from whole trees, and the worth of levels from other trees."""
        # a whole tree is valued without the estimator, which has nothing to learn from it
        if outcome.grown.pruned is not None:
            self.ahead.observe(outcome)
            if outcome.trees > 1:
                self.gains.observe(outcome.grown)
        elif not outcome.asked:  # there is nothing to learn from
            self.steps.rest(outcome.trees)
        else:
            super().observe(outcome)
            self.steps.observe(outcome, first=not self.begun_)
        self.begun_ = True

    def tree_shape(self, budget: Budget) -> TreeShape | None:
        """The shape that paid lately, for drafters that build whole trees.

        None if the estimator has no table. Such a tree is valued by the drafter's own probs.
        Measured on an H200: with the counts of `binned` trees were no better, and a round took a
        fifth longer. Where a device builds the tree, children cost next to nothing, as leaves do.
        """
        table = self.estimator.export_table()
        if table is None:
            return None
        level = self.ahead.price(budget, self._beam)
        depth, nodes = self.ahead.depth(budget, level), self.ahead.size(budget)
        hope = self.ahead.hope(nodes) - depth * level
        longest = min(budget.depth, budget.nodes)
        return replace(
            self._shape(budget, depth, nodes),
            hope=hope,
            longest=longest,
            terms=self._terms(budget, table.counts),
        )

    def round_gain(self, nodes: int, depth: int) -> float | None:
        """Tokens expected of trees of a batch; None before the first was seen."""
        return self.gains.expected(nodes, depth) if self.gains.trees else None

    def tree_shapes(self, budget: Budget) -> list[TreeShape]:
        """All shapes it may ask for, apart from their size, so that a device can prepare them."""
        return [
            self._shape(budget, depth, budget.nodes) for depth in STEPS if depth <= budget.depth
        ]

    @property
    def _beam(self) -> int:
        return max(self.stride, BEAM)

    def _shape(self, budget: Budget, depth: int, nodes: int) -> TreeShape:
        """A shape with levels as wide as a tree of this depth has room for."""
        width = max(budget.width, self._beam)
        leaves = min(self._beam, (CAPACITY - 1 - width) // (width * max(depth - 1, 1)))
        return TreeShape(nodes, depth, leaves, width)

    def _terms(self, budget: Budget, counts: AcceptanceCounts | None) -> GrowthRule | None:
        """The rule of `frontier`, for drafters that apply it themselves; None without counts."""
        if counts is None:
            return None
        if budget.rate:
            return self.steps.terms(budget, self.stride, counts, owner=self)
        return GrowthRule(budget, self.stride, counts, least=max(budget.floor, budget.draft))

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

"""The budget of most expected tokens per second, down to no tree at all.

By renewal-reward, the tree that maximises long-run throughput is the one that maximises expected
tokens minus lambda times its seconds, where lambda is the present throughput itself (one step of
Dinkelbach's method per round). So this controller does not choose a shape: it sets prices. A tree
of n nodes must bring lambda * (V(n) - V(0)) tokens to pay for its pass, V being the measured
staircase, and each expansion lambda times its draft seconds; the policy then grows breadth, depth
and size exactly as far as calibrated reach pays for them. When a number of speculating rounds were
no faster than plain decoding would have been, drafting rests for a while and then tries again.
Costs and chances that are never tried cannot be corrected, so after many rounds without a tree one
small tree is sent at any price.

Where many requests share a pass, lambda is the throughput of all, and V(n) is read where the
others' rows end: the larger the batch, the fewer nodes pay. Once even the cheapest node costs about
a token, which no node can bring, nothing is drafted, and a request whose drafts do not pay there
pauses for itself (`draft_backoff.py`). Where a device runs ahead and finishes
before the host does, rows cost nothing up to the host's own share of a round.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from sapwood.controllers.draft_backoff import DraftBackoff
from sapwood.controllers.throughput_stats import (
    RoundShare,
    ThroughputController,
    ThroughputStats,
    alone,
    refine,
)
from sapwood.core.part import at_least, between
from sapwood.core.protocols import EngineContext, RequestContext
from sapwood.core.tree import CAPACITY
from sapwood.core.types import ALONE, NO_NODES, BatchLoad, Budget, Outcome
from sapwood.engine.cost_model import CostModel

FOLLOW = 0.1  # rate of the running mean of the host's share
PROBE = 2  # nodes of the tree that is sent unpriced: few, as rows may be expensive
LIKELY = 0.9  # tokens that a good node brings; dearer ones are not drafted in a shared pass
PRICED_OUT = 32  # rounds after which prices are looked at again


@dataclass
class Goodput(ThroughputController):
    """Price nodes and drafting by measured cost at the present throughput; rest if slower."""

    # most nodes of a tree: with the root, as many rows as a GPU takes for little more than one
    nodes: int = 63
    depth: int = 16
    width: int = 4
    # share by which speculation must fall behind plain decoding before it rests
    slack: float = 0.03
    patience: int = 24  # speculating rounds between two decisions
    pause: int = 8  # rounds of the first rest; each fruitless try doubles it
    longest: int = 512  # longest rest
    # rounds without a tree after which one is sent unpriced; doubled while probes change nothing
    probe: int = 64

    priced: ClassVar[bool] = True  # reads the machine's cost curve, which must have been measured

    def __post_init__(self) -> None:
        between(1, CAPACITY - 1, nodes=self.nodes)
        between(0, 1, slack=self.slack)
        at_least(
            1,
            depth=self.depth,
            width=self.width,
            patience=self.patience,
            pause=self.pause,
            probe=self.probe,
        )

    def bind(self, setting: EngineContext) -> None:
        """Take the machine's cost curve; its statistics are shared by all requests."""
        self.cost: CostModel = setting.cost
        self.stats = ThroughputStats(
            self.slack, self.patience, self.pause, self.longest, self.probe
        )
        # seconds of a round's pass in which the host does not wait for the device
        self.busy = 0.0
        self._counts = np.arange(1, self.nodes + 1)

    @property
    def largest(self) -> Budget:
        """The largest budget of this controller, without prices."""
        return Budget(self.nodes, self.depth, self.width)

    def reset(self, request: RequestContext) -> None:
        """Begin at the prompt's length, in a batch of one."""
        self.context_ = len(request.prompt) - 1
        self.begun_ = False
        self.batch_load_ = ALONE
        self.backoff_ = DraftBackoff()
        self.stats.begin_text()
        self.budget_ = NO_NODES  # of this round

    def join(self, load: BatchLoad) -> None:
        """Set the load of the batch that shares the next pass."""
        self.batch_load_ = load
        if load.trees != self.stats.trees:
            self.stats.set_load(load.trees, self.plain())

    @property
    def resting(self) -> int:
        """Rounds that are left of the present rest."""
        return self.stats.rest

    def plain(self) -> float:
        """Seconds per token of plain decoding at this batch load."""
        trees = self.batch_load_.trees
        return self.cost.seconds(trees, self.context_, trees) / trees

    def budget(self) -> Budget:
        """The largest budget, with prices of nodes and drafting; none in a rest or pause."""
        self.budget_ = self._budget()
        return self.budget_

    def _budget(self) -> Budget:
        load = self.batch_load_
        # a request pauses for itself, not when it plans the trees of all
        apart = load.trees > 1 and not load.alike
        if self.stats.rest > 0 or (apart and self.backoff_.pauses()):
            return NO_NODES
        if self.begun_ and load.trees == 1 and self.cost.lacks_root(self.context_):
            return NO_NODES  # what nodes cost is told from passes with and without them
        if self.stats.probes():
            return Budget(min(self.nodes, PROBE), self.depth, self.width)
        others = load.rows
        # seconds by rows, the root alone first
        line = self.cost.line(others + self.nodes + 1, self.context_)[others:]
        # rows that are verified before the host is ready again cost nothing
        line = np.maximum(line, self.busy)
        rate = self.rate()
        price = rate * (line - line[0])
        if others and (price[1:] / self._counts).min() > LIKELY:
            self.stats.rest_for(PRICED_OUT)
            return NO_NODES
        draft = rate * self.stats.expansion
        return Budget(self.nodes, self.depth, self.width, price, draft, rate)

    def rate(self) -> float:
        """Present tokens per second, never less than plain decoding's."""
        return max(self.batch_load_.rate or self.stats.rate, 1 / self.plain())

    def observe(self, outcome: Outcome) -> None:
        """Record the round; the stats of a shared pass are settled by the batch."""
        self.stats.entries.append(RoundShare.of(outcome, first=not self.begun_))
        if outcome.shared is not None and outcome.asked and self.begun_:
            self._observe_gain(outcome)
        self.context_ = outcome.context + outcome.verdict.accepted + 1
        self.begun_ = True
        if (waited := outcome.scores.host_wait) is not None:
            # the device drafts in that time too
            busy = max(outcome.times.total - waited - outcome.tree.drafting, 0.0)
            self.busy += FOLLOW * (min(busy, 2 * self.busy) - self.busy) if self.busy else busy
        if outcome.shared is None:
            self.stats.settle(refine(self.cost, alone(outcome)), self.cost)

    def _observe_gain(self, outcome: Outcome) -> None:
        """Count what this request's drafts brought, in tokens."""
        budget = self.budget_
        if budget.price is None:  # a probe
            return
        nodes = min(len(outcome.tree), len(budget.price)) - 1
        cost = float(budget.price[nodes]) + budget.rate * outcome.times.draft
        self.backoff_.observe(outcome.verdict.accepted - cost)

"""The budget of most expected tokens per second, down to no tree at all.

By renewal-reward, the tree that maximises long-run throughput is the one that maximises expected
tokens minus lambda times its seconds, where lambda is the present throughput itself (one step of
Dinkelbach's method per round). So this controller does not choose a shape: it sets prices. A tree of
n nodes must bring lambda * (V(n) - V(0)) tokens to pay for its pass, V being the measured staircase,
and each expansion lambda times its draft seconds; the policy then grows breadth, depth and size
exactly as far as calibrated reach pays for them. When a stretch of speculating rounds was no faster
than plain decoding would have been, drafting rests for a while and then tries again. Costs and
chances that are never tried cannot be corrected, so after many rounds without a tree one small tree
is sent whatever it costs.

Where many requests share a pass, lambda is the throughput of all, and V(n) is read where the others' rows end:
the more there are, the less a row is shared by and the fewer nodes pay. Where a device goes on by itself and is
done before the host is, rows cost nothing up to the host's own share of a round.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from sapwood.controllers.ledger import Entry, Ledger, alone, refine
from sapwood.cost import CostCurve
from sapwood.part import Part, at_least, between
from sapwood.protocols import Request, Setting
from sapwood.records import ALONE, NO_NODES, Budget, Company, Outcome
from sapwood.tree import CAPACITY

FOLLOW = 0.1  # how fast the mean of the host's share follows
PROBE = 2  # nodes of the tree that is sent unpriced: where rows are dear it must not cost more than it can teach


@dataclass
class Goodput(Part):
    """Price nodes and drafting by measured cost at the present throughput; rest when it does not pay."""

    nodes: int = 63  # most nodes of a tree: with the root, as many rows as a GPU takes for little more than one
    depth: int = 16
    width: int = 4
    slack: float = 0.03  # share by which speculation must fall behind plain decoding before it rests
    patience: int = 24  # speculating rounds between two decisions
    pause: int = 8  # rounds of the first rest; each fruitless try doubles it
    longest: int = 512  # longest rest
    probe: int = 64  # rounds without a tree after which one is sent unpriced; more after each that taught nothing

    priced: ClassVar[bool] = True  # reads the machine's cost curve, which must have been measured

    def __post_init__(self) -> None:
        between(1, CAPACITY - 1, nodes=self.nodes)
        between(0, 1, slack=self.slack)
        at_least(1, depth=self.depth, width=self.width, patience=self.patience, pause=self.pause, probe=self.probe)

    def bind(self, setting: Setting) -> None:
        """Take the machine's cost curve; the ledger is shared by all requests."""
        self.cost: CostCurve = setting.cost
        self.ledger = Ledger(self.slack, self.patience, self.pause, self.longest, self.probe)
        self.busy = 0.0  # seconds of a round in which the host does not wait for a device that goes on without it

    @property
    def largest(self) -> Budget:
        """The largest budget that it may set, without prices."""
        return Budget(self.nodes, self.depth, self.width)

    def reset(self, request: Request) -> None:
        """Begin at the prompt's length, alone."""
        self.context_, self.begun_, self.company_ = len(request.prompt) - 1, False, ALONE

    def join(self, company: Company) -> None:
        """Learn who shares the coming pass."""
        self.company_ = company
        self.ledger.meet(company.trees, self.plain())

    def plain(self) -> float:
        """Seconds per token of plain decoding, in this company."""
        trees = self.company_.trees
        return self.cost.seconds(trees, self.context_, trees) / trees

    def budget(self) -> Budget:
        """The largest budget, with the price of everything in it."""
        if self.ledger.rest > 0:
            return NO_NODES
        if self.ledger.probes():
            return Budget(min(self.nodes, PROBE), self.depth, self.width)
        others = self.company_.rows
        line = self.cost.line(others + self.nodes + 1, self.context_)[others:]  # seconds by rows, the root alone first
        line = np.maximum(line, self.busy)  # rows that are checked before the host is ready again cost nothing
        rate = self.rate()
        price, draft = rate * (line - line[0]), rate * self.ledger.expansion
        return Budget(self.nodes, self.depth, self.width, price, draft, rate)

    def rate(self) -> float:
        """Present tokens per second, never less than plain decoding's."""
        return max(self.company_.rate or self.ledger.rate, 1 / self.plain())

    def observe(self, outcome: Outcome) -> None:
        """Enter the round in the books; where it was shared, they are settled by whoever joined the requests."""
        self.ledger.entries.append(Entry.of(outcome, first=not self.begun_))
        self.context_, self.begun_ = outcome.context + outcome.verdict.accepted + 1, True
        if (waited := getattr(outcome.scores, "waited", None)) is not None:
            busy = max(outcome.times.total - waited, 0.0)
            self.busy += FOLLOW * (min(busy, 2 * self.busy) - self.busy) if self.busy else busy
        if outcome.joint is None:
            self.ledger.settle(refine(self.cost, alone(outcome)), self.cost)

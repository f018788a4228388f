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
"""

from dataclasses import dataclass
from typing import ClassVar

from sapwood.cost import CostCurve
from sapwood.part import Part, at_least, between
from sapwood.protocols import Request, Setting
from sapwood.records import NO_NODES, Budget, Outcome
from sapwood.tree import CAPACITY

FADE = 0.95  # weight that a round's tokens and seconds keep after the next one
PROBE = 2  # nodes of the tree that is sent unpriced: where rows are dear it must not cost more than it can teach
SELDOM = 16  # how much further apart fruitless probes may move
BRIEF = 3  # how much shorter a try is after one that failed
RECENT = 10  # rounds that the draft seconds of a node look back
MISHAP = 4.0  # a stage that takes more than so many times what was foreseen compiled something, or was interrupted


@dataclass
class Ledger:
    """What the controller remembers from request to request."""

    tokens: float = 0.0  # emitted, faded
    seconds: float = 0.0  # spent, faded
    plain: float = 0.0  # what plain decoding would have spent on the same tokens, faded
    expansion: float = 0.0  # draft seconds of one expanded node, running average
    drafts: int = 0  # rounds in that average
    rounds: int = 0  # speculating rounds since the last decision
    rest: int = 0  # plain rounds still to go
    pause: int = 0  # length of the next rest
    failed: bool = False  # the last try ended in a rest
    idle: int = 0  # rounds since a tree was last sent
    wait: int = 0  # of these, before one is sent unpriced


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
        self.ledger = Ledger(pause=self.pause, wait=self.probe)

    def reset(self, request: Request) -> None:
        """Begin at the prompt's length."""
        self.context_, self.begun_ = len(request.prompt) - 1, False

    def budget(self) -> Budget:
        """The largest budget, with the price of everything in it."""
        if self.ledger.rest > 0:
            return NO_NODES
        if self.ledger.idle >= self.ledger.wait:
            return Budget(min(self.nodes, PROBE), self.depth, self.width)
        line = self.cost.line(self.nodes + 1, self.context_)  # seconds by rows, the root alone first
        rate = self.rate(line[0])
        price, draft = rate * (line - line[0]), rate * self.ledger.expansion
        return Budget(self.nodes, self.depth, self.width, price, draft, rate)

    def rate(self, plain: float) -> float:
        """Present tokens per second, never less than plain decoding's."""
        ledger = self.ledger
        return max(ledger.tokens / ledger.seconds if ledger.seconds else 0.0, 1 / plain)

    def observe(self, outcome: Outcome) -> None:
        """Refine the cost curve, keep the books, and decide whether to rest."""
        ledger, times, rows = self.ledger, outcome.times, len(outcome.tree)
        verify = unspoiled(times.verify, self.cost.seconds(rows, outcome.context))
        self.cost.observe(rows, outcome.context, times.verify)
        self.context_ = outcome.context + outcome.verdict.accepted + 1
        if rows > 1:
            probed = ledger.idle >= ledger.wait
            ledger.wait = min(2 * ledger.wait, SELDOM * self.probe) if probed else self.probe
        ledger.idle = 0 if rows > 1 else ledger.idle + 1
        if ledger.rest > 0:
            ledger.rest -= 1
            return
        expanded = int(outcome.grown.expanded.sum())
        draft = self.drafted(expanded, times.draft) if self.begun_ else 0.0  # reading the prompt is spent anyway
        plain = self.cost.plain(rows, outcome.context, verify)
        tokens, self.begun_ = len(outcome.tokens), True
        ledger.tokens = FADE * ledger.tokens + tokens
        ledger.seconds = FADE * ledger.seconds + draft + verify
        ledger.plain = FADE * ledger.plain + tokens * plain
        ledger.rounds += 1
        if ledger.rounds >= (self.patience // BRIEF if ledger.failed else self.patience):
            self.decide()

    def drafted(self, expanded: int, seconds: float) -> float:
        """Take in what expanding so many nodes took; the seconds to book, without what a mishap added."""
        ledger = self.ledger
        if not expanded or not seconds:
            return seconds
        first, seconds = not ledger.drafts, unspoiled(seconds, expanded * ledger.expansion)
        each = seconds / expanded
        if ledger.drafts < RECENT:  # some of the first rounds load and compile: the quickest shows what drafting takes
            ledger.expansion = min(ledger.expansion or each, each)
        else:
            ledger.expansion += (each - ledger.expansion) / RECENT
        ledger.drafts += 1
        return 0.0 if first else seconds

    def decide(self) -> None:
        """Rest when the last stretch was slower than plain decoding; forgive when it was faster."""
        ledger = self.ledger
        ledger.rounds = 0
        if ledger.plain < (1 - self.slack) * ledger.seconds:
            ledger.rest, ledger.pause = ledger.pause, min(2 * ledger.pause, self.longest)
            ledger.tokens = ledger.seconds = ledger.plain = 0.0
            ledger.failed = True
        elif ledger.plain > ledger.seconds:
            ledger.pause, ledger.failed = self.pause, False


def unspoiled(seconds: float, foreseen: float) -> float:
    """The seconds of a stage, or those foreseen where a mishap says nothing about it."""
    return foreseen if 0 < MISHAP * foreseen < seconds else seconds

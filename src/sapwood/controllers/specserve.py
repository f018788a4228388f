"""The budget of most tokens per second with which every request still meets a deadline per token.

SpecServe, later AdaSpec (arXiv 2503.05096): speculation is worth its cost only while a server has
room, so drafts follow estimated confidences, a goodput model and a deadline for the time per output
token. Here nodes are priced as by `goodput`, from calibrated confidences and the measured cost of a
pass, and the deadline bounds their number. Token n of a request is due n deadlines after its first;
a round is predicted as the drafts of all requests and one pass over all rows, and it may take until
the next token of any request is due. So requests whose drafts are accepted allow long rounds, and
one whose drafts are rejected, to which a round brings one token, shortens those of all. Rows that
would make a round late are left out, and those that are left are shared out among the requests.
Where even a pass without trees would come too late for a token, no tree could keep its deadline,
and the most tokens per second are what makes the load pass.

Predictions err, and a deadline is missed by the slow rounds: the ratio of measured to predicted
seconds is followed, quickly up and slowly down, and multiplies the prediction. The published code
has the deadline's branch switched off, and trims drafts of sampled tokens by their own probability,
which is not exact; here only sizes are chosen, before anything is drafted.
"""

import math
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from sapwood.controllers.goodput import Goodput
from sapwood.core.part import between
from sapwood.core.protocols import EngineContext, RequestContext
from sapwood.core.types import Budget, Outcome, SharedPass

UP = 0.8  # rate at which the error of predictions follows a slower round
DOWN = 0.004  # and a faster one
START = 1.1  # error before any was measured
WORST = 1.5  # largest error that is followed: a slower round was an outlier
RECENT = 20  # rounds in the mean seconds of a draft


@dataclass
class PredictionError:
    """Measured over predicted seconds of a pass, near its upper end."""

    ratio: float = START

    def add(self, ratio: float) -> None:
        """Follow a slower pass quickly, a faster one slowly."""
        ratio = min(ratio, WORST)
        self.ratio += (UP if ratio > self.ratio else DOWN) * (ratio - self.ratio)


@dataclass(eq=False)
class TokenDue:
    """One running request: its last tree, and when its next token is due."""

    at: float = math.inf  # on the engine's clock; before the first token there is no deadline
    nodes: int = 0  # of the last tree


@dataclass
class DeadlineStats:
    """State of all requests that share a deadline."""

    late: PredictionError = field(default_factory=PredictionError)
    running: set[TokenDue] = field(default_factory=set)
    draft: float = 0.0  # seconds in which one request drafts, running mean
    drafts: int = 0  # rounds in that mean
    turn: int = 0  # of the request that plans next
    last: SharedPass | None = None  # the last pass that was compared with its prediction


@dataclass
class SpecServe(Goodput):
    """Prices of measured cost, and no more nodes than a deadline per token leaves room for."""

    deadline: float = 0.05  # seconds per token, above 0

    paper: ClassVar[str] = "2503.05096"

    def __post_init__(self) -> None:
        super().__post_init__()
        between(1e-6, 3600, deadline=self.deadline)

    def bind(self, setting: EngineContext) -> None:
        """Begin without an error of predictions; it is shared by all requests."""
        super().bind(setting)
        self.now = setting.now
        self.shared = DeadlineStats()

    def reset(self, request: RequestContext) -> None:
        """Begin without a tree and without a deadline."""
        super().reset(request)
        self.due_ = TokenDue()
        self.shared.running.add(self.due_)

    def budget(self) -> Budget:
        """The budget of most tokens per second, cut to what meets the deadline."""
        found = super().budget()
        return found.within(self.most_nodes(), found.depth) if found.nodes else found

    def most_nodes(self) -> int:
        """Nodes of this request's tree with which no request is predicted to miss its deadline.

        Requests that miss it in any case do not count.
        """
        load = self.batch_load_
        shared = self.shared
        plain = self.cost.seconds(load.trees, self.context_, load.trees)
        now = self.now()
        left = [due.at - now for due in shared.running if due.at - now > plain]
        if not left or math.isinf(bound := min(left)):
            return self.nodes
        # rows of prompts, and of requests with other recipes
        others = sum(due.nodes for due in shared.running if due is not self.due_)
        taken = load.trees + max(load.rows - (load.trees - 1) - others, 0)
        line = self.cost.line(taken + load.trees * self.nodes, self.context_)
        trees = self.cost.drift * self.cost.tree * (load.trees - 1)
        bound -= load.trees * shared.draft
        late = np.flatnonzero((line + trees) * shared.late.ratio > bound)
        rows = int(late[0]) if len(late) else len(line)
        each, over = divmod(max(rows - taken, 0), load.trees)
        shared.turn = (shared.turn + 1) % load.trees  # every request plans once in a round
        return each + (shared.turn < over)

    def observe(self, outcome: Outcome) -> None:
        """Set when the next token is due, follow the errors, then learn as `goodput`."""
        due, shared = self.due_, self.shared
        due.nodes = len(outcome.tree) - 1
        if self.begun_:
            due.at += self.deadline * len(outcome.tokens)
        else:
            due.at = self.now() + self.deadline
        if due.nodes and self.begun_:  # the first round includes the drafter's prefill
            shared.drafts += 1
            shared.draft += (outcome.times.draft - shared.draft) / min(shared.drafts, RECENT)
        self._compare(outcome)
        super().observe(outcome)

    def _compare(self, outcome: Outcome) -> None:
        """Compare a pass with its prediction, once for all its requests."""
        shared = outcome.shared
        if shared is not None and (shared is self.shared.last or shared.prefill):
            return  # rows in prefill cost less than predicted
        self.shared.last = shared
        expected = self.cost.seconds(outcome.rows, outcome.context, outcome.trees)
        self.shared.late.add(outcome.times.verify / expected)

    def close(self) -> None:
        """Leave the requests that share the deadline."""
        self.shared.running.discard(self.due_)
        super().close()

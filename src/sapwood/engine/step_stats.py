"""One step of the scheduler: its pass, the steps made of it, and the statistics of both."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from sapwood.controllers.throughput_stats import ThroughputStats
from sapwood.core.protocols import TargetOutput
from sapwood.core.types import SharedPass
from sapwood.engine.cost_model import CostModel
from sapwood.engine.outputs import Step
from sapwood.engine.request import Request

DECAY = 0.95  # weight that a step keeps after the next one


@dataclass
class BatchPass:
    """The target's output of one pass, and the steps made of it."""

    outputs: list[tuple[Request, TargetOutput]]
    prefill: int  # rows of prompts
    seconds: float
    shared: SharedPass | None = None  # None when the pass had one request only
    whole: bool = True  # False when requests were scored one by one: do not use `seconds`
    steps: list[tuple[Request, Step]] = field(default_factory=list)
    # sums over these steps
    tokens: int = 0
    nodes: int = 0  # of the verified trees, roots not counted
    accepted: int = 0
    context: int = 0  # committed tokens before the pass
    draft: float = 0.0  # seconds

    def add(self, request: Request, step: Step) -> None:
        """Add the step that was made of one request's output."""
        self.steps.append((request, step))
        outcome = step.outcome
        self.tokens += len(step.pieces)
        self.context += outcome.context
        self.draft += outcome.times.draft
        nodes = len(outcome.tree) - 1
        if nodes:
            self.nodes += nodes
            self.accepted += sum(piece.drafted for piece in step.pieces)


@dataclass(frozen=True, slots=True)
class StepStats:
    """One pass of the target and the work around it."""

    number: int
    trees: int  # requests whose trees were verified
    nodes: int  # of these trees, roots not counted
    prefill: int  # rows of prompts
    tokens: int  # emitted
    accepted: int  # of these, drafted
    seconds: float  # of the whole step
    draft: float  # of these, spent on drafting
    verify: float  # of these, spent on the pass
    plain: float  # seconds of the same pass without drafted nodes, by the cost model
    rate: float  # tokens per second that further rows are priced by; 0 without prices
    resting: bool  # drafting is paused, as it did not pay
    running: int  # requests that hold memory, after the step
    waiting: int  # requests without memory
    used: int  # KV blocks held by sessions
    cached: int  # KV blocks of the prefix cache


@dataclass(frozen=True, slots=True)
class EngineSnapshot:
    """The state of a scheduler after its last step."""

    running: int  # requests that are being decoded
    prefilling: int  # requests in prefill
    waiting: int  # requests without memory
    used: int  # KV blocks held by sessions
    cached: int  # KV blocks of the prefix cache
    blocks: int | None  # in all; None when unlimited
    block: int  # tokens of a block
    rounds: int  # steps so far
    tokens: int  # emitted so far
    tokens_per_second: float  # lately
    nodes_per_pass: float  # lately, of all trees together
    trees_per_pass: float  # lately
    rate: float  # tokens per second that further rows are priced by
    resting: bool  # drafting is paused, as it did not pay
    preemptions: int  # so far
    draining: bool = False  # no new requests are accepted


class RecentStats:
    """Decayed sums over the last steps."""

    def __init__(self) -> None:
        self.steps = 0.0
        self.tokens = 0.0
        self.seconds = 0.0
        self.nodes = 0.0
        self.trees = 0.0

    def count(self, step: StepStats) -> None:
        """Add a step."""
        self.steps = DECAY * self.steps + 1.0
        self.tokens = DECAY * self.tokens + step.tokens
        self.seconds = DECAY * self.seconds + step.seconds
        self.nodes = DECAY * self.nodes + step.nodes
        self.trees = DECAY * self.trees + step.trees

    @property
    def tokens_per_second(self) -> float:
        """Tokens per second of the steps themselves: pauses between them do not count."""
        return self.tokens / self.seconds if self.seconds else 0.0

    def each(self, total: float) -> float:
        """A sum per step."""
        return total / self.steps if self.steps else 0.0


def settle_step(
    stats: Sequence[ThroughputStats], cost: CostModel, found: BatchPass, seconds: float
) -> None:
    """Update the statistics by the seconds of the whole step, those of prefill left out."""
    shared = found.shared
    if shared is None or not found.whole or not found.tokens:
        return
    if found.prefill:
        every, scored = (
            cost.seconds(rows, shared.context, shared.trees)
            for rows in (shared.rows + found.prefill, shared.rows)
        )
        seconds = max(seconds - found.seconds * (1 - scored / every), 0.0)
    roots = cost.seconds(shared.trees, shared.context, shared.trees)
    for one in stats:
        one.settle_step(shared.trees, found.tokens, found.nodes, roots, seconds)

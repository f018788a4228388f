"""The chain length of most expected tokens per second, from acceptance rate and measured cost.

SmartSpec, later TurboSpec (arXiv 2406.14066): with acceptance rate a, k drafted tokens bring (1 -
a^(k+1)) / (1 - a) tokens for k draft steps and a pass over k + 1 rows of each request of the batch;
the best k is taken each round, and at large batches it is none. The rate is that of verified
tokens: accepted / drafted, as published, counts tokens that were never tested as rejected (0.54
instead of 0.8 for chains of five). Without a draft nothing is learnt, so a short one is tried now
and then. The cost of a pass rises in steps, so all lengths are compared. If the batch is an
assumption, by the option, a draft step costs what it costs one request; where requests do share a
pass, their number is known, and they draft one after the other.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from sapwood.core.array_types import FloatArray
from sapwood.core.part import Part, at_least, between
from sapwood.core.protocols import EngineContext, RequestContext
from sapwood.core.types import NO_NODES, BatchLoad, Budget, Outcome
from sapwood.engine.cost_model import CostModel

PRIOR = 4.0  # drafted tokens that the initial rate is worth
RECENT = 10  # rounds in the mean seconds of a draft step
MISHAP = 4.0  # a draft step's seconds are clipped at this multiple of the usual ones


@dataclass
class SmartSpecHistory:
    """Acceptance counts and draft seconds, shared by all requests."""

    kept: float = 0.0  # accepted tokens, decayed
    refused: float = 0.0  # rejected tokens, decayed; tokens after a rejection were not verified
    step: float = 0.0  # seconds of one draft step, running average
    drafts: int = 0  # rounds in that average
    idle: int = 0  # rounds since something was drafted


@dataclass
class SmartSpec(Part):
    """The chain length of most tokens per second, by acceptance rate, cost curve and batch."""

    most: int = 8  # longest chain
    # assumed number of requests that share a pass, all with the same length, if it is not reported
    batch: int = 1
    start: float = 0.7  # initial acceptance rate, 0 to 1
    fade: float = 0.95  # weight that a round keeps after the next one
    bonus: float = 1.1  # factor on the goodput of plain decoding, against useless speculation
    probe: int = 32  # rounds without a draft before a short one is tried

    paper: ClassVar[str] = "2406.14066"
    priced: ClassVar[bool] = True

    def __post_init__(self) -> None:
        at_least(1, most=self.most, batch=self.batch, probe=self.probe)
        between(0, 1, start=self.start, fade=self.fade)
        between(0.1, 10, bonus=self.bonus)

    def bind(self, setting: EngineContext) -> None:
        """Take the machine's cost curve; the record is shared by all requests."""
        self.cost: CostModel = setting.cost
        self.record = SmartSpecHistory()

    def reset(self, request: RequestContext) -> None:
        """Begin at the prompt's length."""
        self.context_ = len(request.prompt) - 1
        self.begun_ = False
        self.batch_ = self.batch
        self.turns_ = 1

    def join(self, load: BatchLoad) -> None:
        """Set the number of requests that share the next pass."""
        self.batch_ = self.turns_ = load.trees

    def rate(self) -> float:
        """Chance that the next drafted token is accepted."""
        yes, no = self.counts()
        return yes / (yes + no)

    def counts(self) -> tuple[float, float]:
        """Tokens accepted and rejected, with those of the initial rate."""
        return self.record.kept + PRIOR * self.start, self.record.refused + PRIOR * (
            1.0 - self.start
        )

    def budget(self) -> Budget:
        """A chain of the best length, or no nodes."""
        length = int(np.argmax(self.goodput(self.rate())))
        if not length and self.record.idle >= self.probe:
            length = 1
        return Budget(length, length, 1) if length else NO_NODES

    def goodput(self, rate: float) -> FloatArray:
        """Expected tokens per second of a chain of 0, 1, ... tokens."""
        lengths = np.arange(self.most + 1)
        tokens = np.cumsum(rate**lengths)  # 1 + a + ... + a^k
        rows = [self.batch_ * (1 + length) for length in range(self.most + 1)]
        passes = np.array([self.cost.seconds(count, self.context_, self.turns_) for count in rows])
        seconds = self.turns_ * lengths * self.record.step + passes
        found: FloatArray = self.batch_ * tokens / seconds
        found[0] *= self.bonus
        return found

    def observe(self, outcome: Outcome) -> None:
        """Refine the cost curve, the rate and the price of drafting."""
        record = self.record
        accepted = outcome.verdict.accepted
        drafted = outcome.tree.height
        if outcome.shared is None:  # a shared pass is observed by the batch
            self.cost.observe(len(outcome.tree), outcome.context, outcome.times.verify)
        self.context_ = outcome.context + accepted + 1
        begun, self.begun_ = self.begun_, True
        record.idle = 0 if drafted else record.idle + 1
        if not drafted:
            return
        record.kept = self.fade * record.kept + accepted
        record.refused = self.fade * record.refused + (accepted < drafted)
        if begun:  # the first round includes the drafter's prefill
            step = outcome.times.draft / drafted
            record.drafts = record.drafts + 1
            step = min(step, MISHAP * record.step) if record.drafts > 1 else step
            record.step += (step - record.step) / min(record.drafts, RECENT)

"""The length of most expected tokens per second, from a running acceptance rate and the measured cost.

SmartSpec, later TurboSpec (arXiv 2406.14066): with acceptance rate a, k drafted tokens bring
(1 - a^(k+1)) / (1 - a) tokens for k draft steps and a pass over k + 1 rows of each request of the batch; the
best k is taken each round, and at large batches it is none. The rate is that of tokens put to the
question: accepted / drafted, as published, counts tokens that nobody judged as refused (0.54 instead of 0.8
for chains of five). Without a draft nothing is learnt, so a short one is tried now and then. Cost may rise
in stairs, so all lengths are compared. A draft step of a batch that is only assumed, by the option, is taken to cost
what it costs one request; where requests do share a pass, their number is known and each drafts in its turn.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from sapwood.arrays import FloatArray
from sapwood.cost import CostCurve
from sapwood.part import Part, at_least, between
from sapwood.protocols import Request, Setting
from sapwood.records import NO_NODES, Budget, Company, Outcome

PRIOR = 4.0  # drafted tokens that the rate to begin with is worth
RECENT = 10  # rounds that the seconds of a draft step look back
MISHAP = 4.0  # a draft step that takes more than so many times the usual counts as so many


@dataclass
class Record:
    """What is remembered from request to request."""

    kept: float = 0.0  # accepted tokens, faded
    refused: float = 0.0  # refused tokens, faded; those behind a refusal were not put to the question
    step: float = 0.0  # seconds of one draft step, running average
    drafts: int = 0  # rounds in that average
    idle: int = 0  # rounds since something was drafted


@dataclass
class SmartSpec(Part):
    """The chain length of most expected tokens per second, by acceptance rate, cost curve and batch."""

    most: int = 8  # longest chain
    batch: int = 1  # requests that share a pass, all with the same length, where nobody says how many there are
    start: float = 0.7  # acceptance rate to begin with, 0 to 1
    fade: float = 0.95  # weight that a round keeps after the next one
    bonus: float = 1.1  # how many times its worth plain decoding counts: the price of speculating at all
    probe: int = 32  # rounds without a draft before a short one is tried

    paper: ClassVar[str] = "2406.14066"
    priced: ClassVar[bool] = True

    def __post_init__(self) -> None:
        at_least(1, most=self.most, batch=self.batch, probe=self.probe)
        between(0, 1, start=self.start, fade=self.fade)
        between(0.1, 10, bonus=self.bonus)

    def bind(self, setting: Setting) -> None:
        """Take the machine's cost curve; the record is shared by all requests."""
        self.cost: CostCurve = setting.cost
        self.record = Record()

    def reset(self, request: Request) -> None:
        """Begin at the prompt's length."""
        self.context_, self.begun_ = len(request.prompt) - 1, False
        self.batch_, self.turns_ = self.batch, 1

    def join(self, company: Company) -> None:
        """Learn how many requests share the coming pass."""
        self.batch_ = self.turns_ = company.trees

    def rate(self) -> float:
        """Chance that the next drafted token is accepted."""
        yes, no = self.counts()
        return yes / (yes + no)

    def counts(self) -> tuple[float, float]:
        """Tokens accepted and refused, with those that stand for the rate to begin with."""
        return self.record.kept + PRIOR * self.start, self.record.refused + PRIOR * (1.0 - self.start)

    def budget(self) -> Budget:
        """A chain of the best length, or nothing."""
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
        record, accepted, drafted = self.record, outcome.verdict.accepted, outcome.tree.height
        if outcome.joint is None:  # else whoever joined the requests refines it
            self.cost.observe(len(outcome.tree), outcome.context, outcome.times.verify)
        self.context_ = outcome.context + accepted + 1
        begun, self.begun_ = self.begun_, True
        record.idle = 0 if drafted else record.idle + 1
        if not drafted:
            return
        record.kept = self.fade * record.kept + accepted
        record.refused = self.fade * record.refused + (accepted < drafted)
        if begun:  # the first round has read the prompt
            step, record.drafts = outcome.times.draft / drafted, record.drafts + 1
            step = min(step, MISHAP * record.step) if record.drafts > 1 else step
            record.step += (step - record.step) / min(record.drafts, RECENT)

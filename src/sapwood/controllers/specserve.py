"""The chain length of most tokens per second whose round still meets a deadline per token.

SpecServe, later AdaSpec (arXiv 2503.05096): speculation is worth its cost only while a server has
room, so lengths follow a goodput model and a deadline for the time between tokens. A round of k
drafted tokens is predicted from measured costs: k draft steps of every request and a pass over all
rows of the batch. Lengths whose round would take longer than the deadline are left out, and of the
others the one of most expected tokens per second is taken. Where plain decoding alone is too slow
for the deadline, no length is worse for it than another, and nothing is drafted.

Predictions err, and a deadline is missed by the slow rounds: the ratio of measured to predicted
seconds is followed, quickly up and slowly down, and multiplies the prediction. The published code
has the deadline's branch switched off, and trims drafts of sampled tokens by their own probability,
which is not exact; here only lengths are chosen, before anything is drafted.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from sapwood.controllers.smartspec import SmartSpec
from sapwood.core.array_types import FloatArray
from sapwood.core.part import between
from sapwood.core.protocols import EngineContext
from sapwood.core.types import NO_NODES, Budget, Outcome

UP = 0.5  # rate at which the error of predictions follows a slower round
DOWN = 0.02  # and a faster one
WORST = 4.0  # largest error that is followed: a slower round was a mishap


@dataclass
class PredictionError:
    """Measured over predicted seconds of a pass, near its upper end."""

    ratio: float = 1.0

    def add(self, ratio: float) -> None:
        """Follow a slower pass quickly, a faster one slowly."""
        ratio = min(ratio, WORST)
        self.ratio += (UP if ratio > self.ratio else DOWN) * (ratio - self.ratio)


@dataclass
class SpecServe(SmartSpec):
    """The most tokens per second among lengths whose round meets a deadline per token."""

    deadline: float = 0.05  # seconds between tokens, above 0

    paper: ClassVar[str] = "2503.05096"

    def __post_init__(self) -> None:
        super().__post_init__()
        between(1e-6, 3600, deadline=self.deadline)

    def bind(self, setting: EngineContext) -> None:
        """Begin without an error of predictions; it is shared by all requests."""
        super().bind(setting)
        self.late = PredictionError()

    def budget(self) -> Budget:
        """A chain of the best length that meets the deadline, or no nodes."""
        speed = self.goodput(self.rate())
        late = self.seconds() * self.late.ratio > self.deadline
        late[0] = False
        length = int(np.argmax(np.where(late, -np.inf, speed)))
        if not length and self.record.idle >= self.probe and not late[1:2].any():
            length = 1
        return Budget(length, length, 1) if length else NO_NODES

    def seconds(self) -> FloatArray:
        """Predicted seconds of a round of 0, 1, ... drafted tokens."""
        lengths = np.arange(self.most + 1)
        passes = [
            self.cost.seconds(self.batch_ * (1 + length), self.context_, self.turns_)
            for length in lengths.tolist()
        ]
        found: FloatArray = self.turns_ * lengths * self.record.step + np.array(passes)
        return found

    def observe(self, outcome: Outcome) -> None:
        """Follow the error of the prediction, then learn as without a deadline."""
        expected = self.cost.seconds(outcome.rows, outcome.context, outcome.trees)
        self.late.add(outcome.times.verify / expected)
        super().observe(outcome)

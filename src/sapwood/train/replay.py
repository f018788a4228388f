"""Tokens and seconds of a recorded round with another depth or size of its tree."""

from dataclasses import dataclass

import numpy as np

from sapwood.core.array_types import FloatArray
from sapwood.engine.cost_model import CostModel, flat
from sapwood.errors import SapwoodError
from sapwood.train.rounds import RecordedRounds


@dataclass(frozen=True)
class ReplayPrices:
    """Seconds of drafting and of passes on the machine for which rounds are replayed."""

    level: float  # of drafting one level
    cost: CostModel  # of a target pass

    def seconds(self, depth: int, nodes: int, context: int) -> float:
        """Seconds of a round with a tree of this depth and number of checked nodes."""
        return depth * self.level + self.cost.seconds(nodes + 1, context)

    def token(self, rate: float, nodes: int, context: int) -> float:
        """Cost of one more drafted token, in tokens, at this many tokens per second."""
        rise = (self.cost.seconds(nodes + 1, context) - self.cost.seconds(1, context)) / max(
            nodes, 1
        )
        return rate * (self.level + rise)


def priced(rounds: RecordedRounds, cost: CostModel | None) -> ReplayPrices:
    """Prices measured in these rounds; without a cost model every pass costs the same."""
    if not len(rounds):
        raise SapwoodError("no rounds were recorded; give more prompts")
    return ReplayPrices(rounds.level_seconds(), cost or flat(float(np.median(rounds.verify))))


def speed(tokens: FloatArray, seconds: FloatArray) -> float:
    """Tokens per second over all rounds; a mean of each round's own would favour short ones."""
    return float(tokens.sum() / seconds.sum())

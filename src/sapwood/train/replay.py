"""What a recorded round would have brought, and cost, with another depth or size of its tree."""

from dataclasses import dataclass

import numpy as np

from sapwood.arrays import FloatArray
from sapwood.cost import CostCurve, flat
from sapwood.errors import SapwoodError
from sapwood.train.rounds import Rounds


@dataclass(frozen=True)
class Prices:
    """Seconds of drafting and of checking on the machine the rounds are replayed for."""

    level: float  # of drafting one level
    cost: CostCurve  # of a target pass

    def seconds(self, depth: int, nodes: int, context: int) -> float:
        """Of a round with a tree of this depth and so many checked nodes."""
        return depth * self.level + self.cost.seconds(nodes + 1, context)

    def token(self, rate: float, nodes: int, context: int) -> float:
        """What one more drafted token costs, in tokens, at this many tokens per second."""
        rise = (self.cost.seconds(nodes + 1, context) - self.cost.seconds(1, context)) / max(nodes, 1)
        return rate * (self.level + rise)


def priced(rounds: Rounds, cost: CostCurve | None) -> Prices:
    """Prices as these rounds measured them; without a curve, a pass costs the same for every tree."""
    if not len(rounds):
        raise SapwoodError("no rounds were recorded; give more prompts")
    return Prices(rounds.level_seconds(), cost or flat(float(np.median(rounds.verify))))


def speed(tokens: FloatArray, seconds: FloatArray) -> float:
    """Tokens per second over all rounds; a mean of each round's own would favour short ones."""
    return float(tokens.sum() / seconds.sum())

"""Whether a node that is said to stand with chance c stands c of the time.

Counted over nodes whose parent was accepted: the chance that the policy gave each of them, in ten bins,
beside how often they were the target's own next token. Read off finished rounds, outside of their clock.
"""

from dataclasses import dataclass, field

import numpy as np

from sapwood.arrays import FloatArray
from sapwood.estimators.binned import judged
from sapwood.records import Outcome

BINS = 10  # of equal width


@dataclass(frozen=True, slots=True)
class Bin:
    """Nodes of about the same chance."""

    low: float  # edges of the bin
    high: float
    nodes: int
    predicted: float  # mean chance
    accepted: float  # share that stood


@dataclass(slots=True)
class Reliability:
    """Nodes put to the question, by the chance they were given."""

    sums: FloatArray = field(default_factory=lambda: np.zeros((3, BINS)))  # nodes, chances, acceptances

    def count(self, outcome: Outcome) -> None:
        """Take in a round; nodes that no estimator valued do not count."""
        grown = outcome.grown
        if grown.valued <= 1:
            return
        hit, tried = judged(outcome)
        tried[grown.valued :] = False
        nodes = np.flatnonzero(tried)
        above = grown.reach[grown.parents[nodes]]
        chance = np.clip(grown.reach[nodes] / np.where(above > 0, above, 1.0), 0.0, 1.0)
        place = np.minimum((chance * BINS).astype(np.int64), BINS - 1)
        for row, values in zip(self.sums, (np.ones(len(nodes)), chance, hit[nodes]), strict=True):
            row += np.bincount(place, values, BINS)

    def __add__(self, other: "Reliability") -> "Reliability":
        return Reliability(self.sums + other.sums)

    def bins(self) -> list[Bin] | None:
        """The bins that hold nodes; None where nobody said any chance."""
        rows = zip(*self.sums.tolist(), strict=True)
        found = [
            Bin(place / BINS, (place + 1) / BINS, int(nodes), chances / nodes, stood / nodes)
            for place, (nodes, chances, stood) in enumerate(rows)
            if nodes
        ]
        return found or None

    def error(self) -> float | None:
        """Expected calibration error: mean gap between chance and share, over nodes."""
        nodes, chances, stood = self.sums
        return float(np.abs(chances - stood).sum() / nodes.sum()) if nodes.any() else None

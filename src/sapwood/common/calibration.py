"""Calibration: predicted against actual acceptance of nodes.

Counted over nodes whose parent was accepted: the probability that the policy predicted, in ten
bins, and the share that was the target's own next token. Counted after a round, outside of its
measured times.
"""

from dataclasses import dataclass, field

import numpy as np

from sapwood.core.array_types import FloatArray
from sapwood.core.types import Outcome

BINS = 10  # of equal width


@dataclass(frozen=True, slots=True)
class CalibrationBin:
    """Nodes of about the same predicted probability."""

    low: float  # edges of the bin
    high: float
    nodes: int
    predicted: float  # mean probability
    accepted: float  # share of them


@dataclass(slots=True)
class CalibrationCurve:
    """Verified nodes by predicted probability."""

    # nodes, sums of probabilities, accepted nodes
    sums: FloatArray = field(default_factory=lambda: np.zeros((3, BINS)))

    def count(self, outcome: Outcome) -> None:
        """Count a round; nodes without an estimate do not count."""
        grown = outcome.grown
        if grown.valued <= 1:
            return
        hit, tried = outcome.verified_nodes()
        tried[grown.valued :] = False
        nodes = np.flatnonzero(tried)
        above = grown.reach[grown.parents[nodes]]
        chance = np.clip(grown.reach[nodes] / np.where(above > 0, above, 1.0), 0.0, 1.0)
        place = np.minimum((chance * BINS).astype(np.int64), BINS - 1)
        for row, values in zip(self.sums, (np.ones(len(nodes)), chance, hit[nodes]), strict=True):
            row += np.bincount(place, values, BINS)

    def __add__(self, other: "CalibrationCurve") -> "CalibrationCurve":
        return CalibrationCurve(self.sums + other.sums)

    def bins(self) -> list[CalibrationBin] | None:
        """The bins that hold nodes; None when no node was counted."""
        rows = zip(*self.sums.tolist(), strict=True)
        found = [
            CalibrationBin(
                index / BINS, (index + 1) / BINS, int(nodes), chances / nodes, accepted / nodes
            )
            for index, (nodes, chances, accepted) in enumerate(rows)
            if nodes
        ]
        return found or None

    def error(self) -> float | None:
        """Expected calibration error: mean gap between chance and share, over nodes."""
        nodes, chances, stood = self.sums
        return float(np.abs(chances - stood).sum() / nodes.sum()) if nodes.any() else None

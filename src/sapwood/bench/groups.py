"""Runs of one contender beside plain decoding's on the same prompts, and what they amount to.

Intervals are bootstrap intervals over conversations: the turns of one conversation are drawn together.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from sapwood.arrays import FloatArray, IntArray
from sapwood.bench.measure import Run

RESAMPLES, COVERS = 1000, 95  # of the bootstrap: how often it draws, per cent that the interval holds
Pair = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Group:
    """Runs on some prompts; those with the same talk belong to one conversation."""

    runs: list[Run]
    plain: list[Run]
    talks: Sequence[object] | None = None  # of each run; None: each is its own

    @property
    def speedup(self) -> float:
        """Ratio of seconds per token, sums over prompts; nan where no seconds were told."""
        return float(ratios(self.runs, self.plain, np.arange(len(self.runs))[None])[0])

    @property
    def interval(self) -> Pair:
        """Interval of the speedup, always of the same draws."""
        return self._spread(lambda draws: ratios(self._summed(self.runs), self._summed(self.plain), draws))

    @property
    def rate_interval(self) -> Pair:
        """Interval of tokens per second."""
        return self._spread(lambda draws: 1 / pace(self._summed(self.runs), draws))

    @property
    def yield_interval(self) -> Pair:
        """Interval of tokens per pass."""
        passes, tokens = self._sums([[run.passes, run.length] for run in self.runs]).T
        return self._spread(lambda draws: tokens[draws].sum(1) / passes[draws].sum(1))

    @property
    def prompts(self) -> int:
        """Conversations."""
        return len(set(self._labels()))

    def _labels(self) -> list[object]:
        return list(range(len(self.runs)) if self.talks is None else self.talks)

    def _sums(self, columns: list[list[float]]) -> FloatArray:
        """Sums by conversation, [conversations, columns]."""
        labels = {label: place for place, label in enumerate(dict.fromkeys(self._labels()))}
        places = [labels[label] for label in self._labels()]
        sums = np.zeros((len(labels), len(columns[0])))
        np.add.at(sums, places, np.array(columns, np.float64))
        return sums

    def _summed(self, runs: Sequence[Run]) -> list[Run]:
        """One run for each conversation, with the sums of its turns."""
        sums = self._sums([[run.seconds, run.paced] for run in runs])
        return [Run(verify=seconds, said=int(tokens)) for seconds, tokens in sums.tolist()]

    def _spread(self, value: Callable[[IntArray], FloatArray]) -> Pair:
        draws = np.random.default_rng(0).integers(self.prompts, size=(RESAMPLES, self.prompts))
        with np.errstate(divide="ignore", invalid="ignore"):
            values = value(draws)
        values, tail = values[np.isfinite(values)], (100 - COVERS) / 2
        if not len(values):
            return float("nan"), float("nan")
        low, high = np.percentile(values, [tail, 100 - tail])
        return float(low), float(high)


def ratios(runs: Sequence[Run], plain: Sequence[Run], draws: IntArray) -> FloatArray:
    """Plain's seconds per token over the recipe's, for each row of prompts drawn, [draws]."""
    return pace(plain, draws) / pace(runs, draws)


def pace(runs: Sequence[Run], draws: IntArray) -> FloatArray:
    """Seconds per token of each row of prompts drawn, [draws]."""
    seconds, tokens = np.array([[run.seconds, run.paced] for run in runs]).T
    with np.errstate(divide="ignore", invalid="ignore"):
        pace: FloatArray = seconds[draws].sum(1) / tokens[draws].sum(1)
    return pace

"""Runs of one contender beside plain decoding's on the same prompts, with their statistics.

Intervals are bootstrap intervals over conversations: the turns of one conversation are drawn
together.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from sapwood.bench.measure import BenchRun
from sapwood.core.array_types import FloatArray, IntArray

RESAMPLES = 1000  # draws of the bootstrap
COVERS = 95  # per cent of the draws inside the interval
Pair = tuple[float, float]


@dataclass(frozen=True, slots=True)
class RunGroup:
    """Runs on some prompts; those with the same `talks` label belong to one conversation."""

    runs: list[BenchRun]
    plain: list[BenchRun]
    talks: Sequence[object] | None = None  # of each run; None: each run is a conversation

    @property
    def speedup(self) -> float:
        """Ratio of seconds per token, sums over prompts; nan without timings."""
        return float(ratios(self.runs, self.plain, np.arange(len(self.runs))[None])[0])

    @property
    def interval(self) -> Pair:
        """Bootstrap interval of the speedup; the draws have a fixed seed."""
        return self._spread(
            lambda draws: ratios(self._summed(self.runs), self._summed(self.plain), draws)
        )

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
        """Number of conversations."""
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

    def _summed(self, runs: Sequence[BenchRun]) -> list[BenchRun]:
        """One run for each conversation, with the sums of its turns."""
        sums = self._sums([[run.seconds, run.paced] for run in runs])
        return [BenchRun(verify=seconds, said=int(tokens)) for seconds, tokens in sums.tolist()]

    def _spread(self, value: Callable[[IntArray], FloatArray]) -> Pair:
        draws = np.random.default_rng(0).integers(self.prompts, size=(RESAMPLES, self.prompts))
        with np.errstate(divide="ignore", invalid="ignore"):
            values = value(draws)
        values = values[np.isfinite(values)]
        tail = (100 - COVERS) / 2
        if not len(values):
            return float("nan"), float("nan")
        low, high = np.percentile(values, [tail, 100 - tail])
        return float(low), float(high)


def ratios(runs: Sequence[BenchRun], plain: Sequence[BenchRun], draws: IntArray) -> FloatArray:
    """Plain's seconds per token over the recipe's, for each row of drawn prompts, [draws]."""
    return pace(plain, draws) / pace(runs, draws)


def pace(runs: Sequence[BenchRun], draws: IntArray) -> FloatArray:
    """Seconds per token of each row of drawn prompts, [draws]."""
    seconds, tokens = np.array([[run.seconds, run.paced] for run in runs]).T
    with np.errstate(divide="ignore", invalid="ignore"):
        pace: FloatArray = seconds[draws].sum(1) / tokens[draws].sum(1)
    return pace

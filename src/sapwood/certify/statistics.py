"""Chi-square tests and their power, from the standard library and numpy.

A p-value is the probability of data at least as extreme from a lossless server. The power says how
small a departure would have been detected: for bins of probabilities p and N observations, a
departure of total variation t has a noncentrality of at least 4 N t^2, whatever its direction
(Cauchy-Schwarz), so the smallest t that reaches the needed noncentrality is a guarantee.
"""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from sapwood.core.array_types import FloatArray

TINY = 1e-300
ENOUGH = 5.0  # expected observations of a bin, below which chi-square is a bad approximation


@dataclass(frozen=True, slots=True)
class StatisticalTest:
    """Result of one statistical test."""

    statistic: float
    freedom: int  # degrees of freedom
    observations: int
    departure: float  # total variation between observed and expected, in the test's bins

    @property
    def p_value(self) -> float:
        """Probability of a statistic at least this large without any departure."""
        return chi_square_tail(self.statistic, self.freedom)

    def caught(self, level: float, power: float) -> float:
        """Total variation from which on any departure is detected with this power."""
        if not self.observations:
            return 1.0
        return min(1.0, math.sqrt(needed(self.freedom, level, power) / self.observations) / 2)


def chi_square_tail(statistic: float, freedom: int) -> float:
    """Probability that a chi-square variable exceeds this statistic."""
    return 1.0 if freedom < 1 or statistic <= 0 else upper_gamma(freedom / 2, statistic / 2)


def upper_gamma(shape: float, x: float) -> float:
    """The regularised upper incomplete gamma function."""
    scale = math.exp(-x + shape * math.log(x) - math.lgamma(shape))
    if x < shape + 1:  # the series of the lower function converges fast here
        term = total = 1 / shape
        place = shape
        while abs(term) > abs(total) * 1e-16:
            place += 1
            term *= x / place
            total += term
        return max(0.0, 1 - total * scale)
    # the continued fraction, by Lentz's method
    low = 1 / TINY
    b = x + 1 - shape
    d = 1 / b
    found = d
    for step in range(1, 10_000):
        a = -step * (step - shape)
        b += 2
        d = 1 / nonzero(a * d + b)
        low = nonzero(b + a / low)
        found *= d * low
        if abs(d * low - 1) < 1e-15:
            break
    return scale * found


def nonzero(value: float) -> float:
    """The value, kept away from zero."""
    return value if abs(value) > TINY else TINY


def threshold(freedom: int, level: float) -> float:
    """The statistic that is exceeded with probability `level`."""
    return bisected(lambda value: chi_square_tail(value, freedom) < level)


def noncentral_tail(statistic: float, freedom: int, noncentrality: float) -> float:
    """The tail under a departure: a Poisson mixture of central ones."""
    half = noncentrality / 2
    centre = int(half)
    total, weight_seen = 0.0, 0.0
    for step in range(max(0, centre - spread(half)), centre + spread(half) + 1):
        weight = (
            math.exp(-half + step * math.log(half) - math.lgamma(step + 1))
            if half
            else float(step == 0)
        )
        total += weight * chi_square_tail(statistic, freedom + 2 * step)
        weight_seen += weight
    return total / weight_seen if weight_seen else 0.0


def spread(half: float) -> int:
    """Terms on each side of a Poisson distribution's centre that hold nearly all of it."""
    return int(12 * math.sqrt(half + 4)) + 12


@functools.cache  # many tests share a size and a level
def needed(freedom: int, level: float, power: float) -> float:
    """The noncentrality that a test of this level detects with this power."""
    if freedom < 1:
        return math.inf
    line = threshold(freedom, level)
    return bisected(lambda value: noncentral_tail(line, freedom, value) > power)


def bisected(holds: Callable[[float], bool]) -> float:
    """The smallest positive number from which on a monotone predicate holds."""
    high = 1.0
    while not holds(high):
        high *= 2
    low = 0.0
    while high - low > 1e-7 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


# ------------------------------------------------------------------------------------ tests
def against_probs(all_probs: FloatArray, taken: Sequence[int]) -> StatisticalTest:
    """Observations against the probs of each, [n, bins]: the i-th fell into bin `taken[i]`.

    Sums of differences over time have mean zero and the covariance below even if the probs of one
    depend on those before, as in text: they are a martingale.
    """
    all_probs = all_probs / all_probs.sum(1, keepdims=True)
    seen = np.bincount(np.array(taken, np.int64), minlength=all_probs.shape[1])
    expected = all_probs.sum(0)
    groups = merged(expected)
    if len(all_probs) == 0 or len(groups) < 2:
        return StatisticalTest(0.0, 0, len(all_probs), 0.0)
    joined = np.stack([all_probs[:, group].sum(1) for group in groups], 1)  # [n, groups]
    gap = np.array([seen[group].sum() for group in groups]) - joined.sum(0)
    covariance = np.diag(joined.sum(0)) - joined.T @ joined
    values, vectors = np.linalg.eigh(covariance)
    regular = values > 1e-9 * max(values.max(), 1.0)
    projected = vectors.T @ gap
    statistic = float((projected[regular] ** 2 / values[regular]).sum())
    if (np.abs(projected[~regular]) > 1e-6 * len(all_probs)).any():  # an impossible observation
        statistic = math.inf
    return StatisticalTest(
        statistic, int(regular.sum()), len(all_probs), float(np.abs(gap).sum() / 2 / len(all_probs))
    )


def two_samples(one: Sequence[int], other: Sequence[int]) -> StatisticalTest:
    """Test that counts of the same bins from two sources have one distribution."""
    counts = np.array([one, other], float)  # [2, bins]
    if not counts.size or not counts.sum(1).all():
        return StatisticalTest(0.0, 0, 0, 0.0)
    sizes = counts.sum(1, keepdims=True)
    pooled = counts.sum(0) / counts.sum()
    groups = merged(pooled * sizes.min())
    joined = np.stack([counts[:, group].sum(1) for group in groups], 1)
    expected = sizes * joined.sum(0) / joined.sum()
    statistic = float(((joined - expected) ** 2 / np.maximum(expected, TINY)).sum())
    shares = joined / sizes
    # for two samples of a and b observations the effective number is a b / (a + b)
    effective = int(sizes.prod() / sizes.sum())
    return StatisticalTest(
        statistic, len(groups) - 1, effective, float(np.abs(shares[0] - shares[1]).sum() / 2)
    )


def merged(expected: FloatArray) -> list[list[int]]:
    """Bins merged, rare ones first, until each expects enough; impossible ones join the rarest."""
    groups: list[list[int]] = []
    total = math.inf
    for place in np.argsort(expected, kind="stable").tolist():
        if total < ENOUGH:
            groups[-1].append(place)
            total += expected[place]
        else:
            groups.append([place])
            total = expected[place]
    if len(groups) > 1 and total < ENOUGH:
        groups[-2] += groups.pop()
    return groups


def combined(tests: Sequence[StatisticalTest]) -> StatisticalTest:
    """Independent tests combined into one."""
    count = sum(test.observations for test in tests)
    weighed = sum(test.departure * test.observations for test in tests) / count if count else 0.0
    return StatisticalTest(
        sum(test.statistic for test in tests), sum(test.freedom for test in tests), count, weighed
    )


def rare(expected: float) -> float:
    """Share of faulty positions that is seen with 99 %, if a fault at all gives `expected`."""
    return min(1.0, -math.log(0.01) / expected) if expected > 0 else 1.0

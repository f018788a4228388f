"""SWIFT's search for the sublayers to skip: random sets, and a Bayesian step every 25 tries.

SWIFT (arXiv 2410.06916) draws sets at random; every 25th one is proposed by Bayesian optimisation:
a Gaussian process is fitted to the scores of all sets tried so far, each a point with 1 for every
skipped sublayer, and of many random points the one with the largest upper confidence bound is
taken; its largest coordinates are the set. A set takes over if its score, the share of tokens it
predicts, is above the best score so far, on whichever text that was measured.

The kernel is Matern's with smoothness 5/2; its length is chosen from a few by the likelihood of the
scores. Points are compared at random instead of being refined by gradients.
"""

import json
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from sapwood.core.array_types import FloatArray
from sapwood.core.rng import NoiseKey
from sapwood.drafters.self.skip_search import Merit, SkipSearch

STEP = 25  # tries from one Bayesian step to the next
KAPPA = 2.5  # standard deviations in the confidence bound
NOISE = 1e-2  # variance of a score around the process, in variances of the scores
LENGTHS = (0.5, 1.0, 2.0, 4.0, 8.0)  # of the kernel
POINTS = 512  # random points whose bounds are compared
RECORD = 400  # newest scores that are fitted
POINT = 7  # noise use of the random points


@dataclass
class BayesSearch(SkipSearch):
    """Random search with Bayesian steps; scores of different texts are compared."""

    points: list[FloatArray] = field(default_factory=list)  # [sublayers] each
    scores: list[float] = field(default_factory=list)

    same_text: ClassVar[bool] = False
    most: ClassVar[int | None] = 1000

    def propose(self) -> tuple[int, ...]:
        """A random set, or every 25th time the one that the process finds most promising."""
        self.tries += 1
        self.stale += 1
        if self.tries % STEP or len(self.scores) < 2:
            order = self.noise.noise(NoiseKey(self.tries, POINT), len(self.able))
            self.point = np.zeros(len(self.able))
            self.point[np.argsort(-order)[: self.count]] = 1.0
        else:
            uniform = self.noise.noise(NoiseKey(self.tries, POINT, 1), POINTS * len(self.able))
            points = uniform.reshape(POINTS, len(self.able))
            bounds = upper_bounds(np.array(self.points), np.array(self.scores), points)
            self.point = points[int(np.argmax(bounds))]
        chosen = np.argsort(-self.point, kind="stable")[: self.count]
        return tuple(sorted(self.able[int(place)] for place in chosen))

    def judge(self, sublayers: tuple[int, ...], merit: Merit, best: Merit) -> bool:
        """Record the score of the proposed set; True if it is above the best one so far."""
        self.points = [*self.points, self.point][-RECORD:]
        self.scores = [*self.scores, merit[0]][-RECORD:]
        return super().judge(sublayers, (merit[0], 0.0), (best[0], 0.0))

    def _kept(self) -> tuple[int, ...]:
        """The set of an earlier run, with the score that a new one must exceed."""
        found = super()._kept()
        if found:
            self.merit = float(json.loads(self.path.read_text()).get("said", 0.0)), 0.0
        return found


def matern(one: FloatArray, two: FloatArray, length: float) -> FloatArray:
    """Matern's kernel of smoothness 5/2 between points, [len(one), len(two)]."""
    squares = (one**2).sum(1)[:, None] + (two**2).sum(1)[None] - 2.0 * one @ two.T
    scaled = np.sqrt(5.0 * np.maximum(squares, 0.0)) / length
    kernel: FloatArray = (1.0 + scaled + scaled**2 / 3.0) * np.exp(-scaled)
    return kernel


def upper_bounds(points: FloatArray, scores: FloatArray, asked: FloatArray) -> FloatArray:
    """Mean plus KAPPA standard deviations of the process at each asked point."""
    spread = float(scores.std()) or 1.0
    values = (scores - scores.mean()) / spread

    def fitted(length: float) -> tuple[float, FloatArray]:
        kernel = matern(points, points, length) + NOISE * np.eye(len(points))
        root = np.linalg.cholesky(kernel)
        half = np.linalg.solve(root, values)
        return -0.5 * float(half @ half) - float(np.log(np.diag(root)).sum()), root

    length = max(LENGTHS, key=lambda each: fitted(each)[0])
    root = fitted(length)[1]
    cross = np.linalg.solve(root, matern(points, asked, length))  # [scores, asked]
    mean = cross.T @ np.linalg.solve(root, values)
    deviation = np.sqrt(np.maximum(1.0 - (cross**2).sum(0), 0.0))
    bounds: FloatArray = scores.mean() + spread * (mean + KAPPA * deviation)
    return bounds

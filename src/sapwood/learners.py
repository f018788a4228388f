"""Learning which of a few choices is best while they are used.

A bandit sees the reward of the choice it made; an expert learner sees what every choice would have
brought. Rewards and losses lie between 0 and 1: a bonus for what was seldom tried is invisible next to
rewards in tokens per second. Noise is that of a place under the caller's own seed.
"""

import enum
import math
import zlib
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

from sapwood.arrays import FloatArray
from sapwood.cost import CostCurve
from sapwood.records import Outcome
from sapwood.rng import Place, Rng

CHANCES = (np.arange(64) + 0.5) / 64  # the grid on which chances are drawn from a posterior
REWARDS = np.linspace(-1.0, 2.0, 601)  # the grid on which mean rewards are drawn; a bell of few trials is wide
ARM = 5  # use of a place, beside those of the request's own noise and of chains that toss coins
STEPS = 40  # halvings of an interval


class Choice(NamedTuple):
    """An arm, and the chance with which it was chosen."""

    arm: int
    chance: float = 1.0


class Bandit(Protocol):
    """Chooses among arms and learns from what the chosen one brought."""

    def choose(self, rng: Rng, place: Place) -> Choice:
        """The arm to play now."""

    def learn(self, choice: Choice, reward: float) -> None:
        """Take in the reward of a choice, from 0 to 1."""


class Means:
    """Mean reward of each arm; old rounds fade."""

    def __init__(self, arms: int, fade: float = 1.0) -> None:
        self.counts, self.sums, self.fade = np.zeros(arms), np.zeros(arms), fade

    def learn(self, choice: Choice, reward: float) -> None:
        """Add one round to its arm."""
        self.counts *= self.fade
        self.sums *= self.fade
        self.counts[choice.arm] += 1.0
        self.sums[choice.arm] += reward

    @property
    def means(self) -> FloatArray:
        """Mean reward by arm, 0 where it was never tried."""
        found: FloatArray = self.sums / np.where(self.counts > 0, self.counts, 1.0)
        return found


class Ucb(Means):
    """Every arm once, then the largest mean plus a bonus that shrinks with the arm's own trials (UCB1)."""

    def choose(self, rng: Rng, place: Place) -> Choice:
        """The most promising arm, the first among equals."""
        untried = np.flatnonzero(self.counts == 0)
        if len(untried):
            return Choice(int(untried[0]))
        trials = math.log(max(float(self.counts.sum()), 1.0))
        return Choice(int(np.argmax(self.means + np.sqrt(2.0 * trials / self.counts))))


class Gaussian(Means):
    """Thompson sampling: the arm whose mean, drawn from a bell as wide as its trials are few, is largest."""

    def choose(self, rng: Rng, place: Place) -> Choice:
        """The arm of the largest draw."""
        laws = np.exp(-0.5 * (self.counts[:, None] + 1.0) * (REWARDS - self.means[:, None]) ** 2)
        laws /= laws.sum(1, keepdims=True)
        drawn = [rng.pick(law, place._replace(slot=arm)) for arm, law in enumerate(laws)]
        return Choice(int(np.argmax(drawn)))


class Exp3:
    """Arms drawn by exponential weights; a loss counts as much more as its arm is seldom drawn."""

    def __init__(self, arms: int) -> None:
        self.losses, self.rounds = np.zeros(arms), 0

    def law(self) -> FloatArray:
        """The chance of each arm; the rate of learning falls with the rounds."""
        arms = len(self.losses)
        rate = math.sqrt(math.log(arms) / (arms * (self.rounds + 1))) if arms > 1 else 0.0
        weights = np.exp(-rate * (self.losses - self.losses.min()))
        found: FloatArray = weights / weights.sum()
        return found

    def choose(self, rng: Rng, place: Place) -> Choice:
        """An arm drawn by its weight."""
        law = self.law()
        arm = rng.pick(law, place)
        return Choice(arm, float(law[arm]))

    def learn(self, choice: Choice, reward: float) -> None:
        """Charge the arm with its loss over the chance it was drawn with: right on average for every arm."""
        self.losses[choice.arm] += (1.0 - reward) / choice.chance
        self.rounds += 1


class NormalHedge:
    """Weights of experts whose losses are all seen; there is no rate of learning to set."""

    def __init__(self, experts: int, fade: float = 1.0) -> None:
        self.regrets, self.fade = np.zeros(experts), fade

    def weights(self) -> FloatArray:
        """Weight of each expert, none for those that did no better than the mixture so far."""
        good = np.maximum(self.regrets, 0.0)
        if not good.any():
            return np.full(len(good), 1.0 / len(good))
        good /= good.max()  # the weights do not depend on the unit
        half = good**2 / (2.0 * normal_scale(good.tolist()))
        weights = good * np.exp(half - half.max())
        found: FloatArray = weights / weights.sum()
        return found

    def learn(self, losses: FloatArray) -> None:
        """Take in the loss of every expert, from 0 to 1."""
        self.regrets = self.fade * self.regrets + (float(self.weights() @ losses) - losses)


def normal_scale(regrets: Sequence[float]) -> float:
    """The scale at which the mean of exp(regret^2 / 2 scale) is e, for regrets of which the largest is 1."""
    low, high = 0.5 / (1.0 + math.log(len(regrets))), 0.5
    for _ in range(STEPS):
        middle = (low + high) / 2.0
        if sum(math.exp(regret**2 / (2.0 * middle)) for regret in regrets) > math.e * len(regrets):
            low = middle
        else:
            high = middle
    return high


class Rule(enum.Enum):
    """How an arm is chosen."""

    UCB = "ucb"  # the largest mean plus a bonus for few trials
    THOMPSON = "thompson"  # the largest draw from what is known of the means
    EXP3 = "exp3"  # by exponential weights, against text that changes

    def make(self, arms: int, fade: float = 1.0) -> Bandit:
        """A bandit of this kind."""
        if self is Rule.EXP3:
            return Exp3(arms)
        return Ucb(arms, fade) if self is Rule.UCB else Gaussian(arms, fade)


def gain(outcome: Outcome, cost: CostCurve) -> float:
    """How many times as fast as plain decoding a round was, by its own clock and the shape of the cost curve."""
    times = outcome.times
    plain = cost.plain(outcome.rows, outcome.context, times.verify, outcome.trees)
    spent = times.draft + times.verify
    return len(outcome.tokens) * plain / spent if spent > 0 else 1.0


def beta_law(yes: float, no: float) -> FloatArray:
    """The Beta law with these counts, on the grid `CHANCES`."""
    logs = (yes - 1) * np.log(CHANCES) + (no - 1) * np.log1p(-CHANCES)
    weights = np.exp(logs - logs.max())
    law: FloatArray = weights / weights.sum()
    return law


def prompt_key(prompt: Sequence[int]) -> int:
    """What tells the noise of one request from that of others, under a part's own seed."""
    return zlib.crc32(np.asarray(prompt, np.int64).tobytes())

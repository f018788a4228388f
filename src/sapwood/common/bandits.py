"""Bandits and expert learners: find the best of a few choices while using them.

A bandit observes the reward of its choice; an expert learner observes the loss of every choice.
Rewards and losses lie between 0 and 1: next to rewards in tokens per second, an exploration bonus
would be negligible. Random numbers are keyed noise under the caller's own seed.
"""

import enum
import math
import zlib
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

from sapwood.core.array_types import FloatArray
from sapwood.core.rng import NoiseKey, Rng
from sapwood.core.types import Outcome
from sapwood.engine.cost_model import CostModel

CHANCES = (np.arange(64) + 0.5) / 64  # grid of probabilities for draws from a posterior
# grid of mean rewards; with few trials, the distribution of a mean is wide
REWARDS = np.linspace(-1.0, 2.0, 601)
ARM = 5  # noise use, distinct from those of the request and of chains that toss coins
STEPS = 40  # halvings of an interval


class ArmChoice(NamedTuple):
    """An arm, and the probability with which it was chosen."""

    arm: int
    chance: float = 1.0


class Bandit(Protocol):
    """Chooses among arms and learns from the reward of the chosen one."""

    def choose(self, rng: Rng, place: NoiseKey) -> ArmChoice:
        """The arm to play now."""

    def learn(self, choice: ArmChoice, reward: float) -> None:
        """Observe the reward of a choice, from 0 to 1."""


class ArmMeans:
    """Mean reward of each arm, decayed by round."""

    def __init__(self, arms: int, fade: float = 1.0) -> None:
        self.counts = np.zeros(arms)
        self.sums = np.zeros(arms)
        self.fade = fade

    def learn(self, choice: ArmChoice, reward: float) -> None:
        """Add one round to its arm."""
        self.counts *= self.fade
        self.sums *= self.fade
        self.counts[choice.arm] += 1.0
        self.sums[choice.arm] += reward

    @property
    def means(self) -> FloatArray:
        """Mean reward by arm, 0 for one that was never tried."""
        found: FloatArray = self.sums / np.where(self.counts > 0, self.counts, 1.0)
        return found


class Ucb(ArmMeans):
    """UCB1: every arm once, then the largest mean plus a bonus that shrinks with its trials."""

    def choose(self, rng: Rng, place: NoiseKey) -> ArmChoice:
        """The most promising arm, the first among equals."""
        untried = np.flatnonzero(self.counts == 0)
        if len(untried):
            return ArmChoice(int(untried[0]))
        trials = math.log(max(float(self.counts.sum()), 1.0))
        return ArmChoice(int(np.argmax(self.means + np.sqrt(2.0 * trials / self.counts))))


class GaussianThompson(ArmMeans):
    """Thompson sampling: the arm with the largest draw from a Gaussian over its mean."""

    def choose(self, rng: Rng, place: NoiseKey) -> ArmChoice:
        """The arm of the largest draw."""
        all_probs = np.exp(
            -0.5 * (self.counts[:, None] + 1.0) * (REWARDS - self.means[:, None]) ** 2
        )
        all_probs /= all_probs.sum(1, keepdims=True)
        drawn = [rng.pick(probs, place._replace(slot=arm)) for arm, probs in enumerate(all_probs)]
        return ArmChoice(int(np.argmax(drawn)))


class BetaThompson(ArmMeans):
    """Thompson sampling of rewards 0 and 1: the arm with the largest draw from its Beta."""

    def choose(self, rng: Rng, place: NoiseKey) -> ArmChoice:
        """The arm of the largest draw, the first among equals."""
        drawn = [
            rng.pick(beta_probs(1.0 + right, 1.0 + count - right), place._replace(slot=slot))
            for slot, (right, count) in enumerate(
                zip(self.sums, self.counts, strict=True), place.slot
            )
        ]
        return ArmChoice(int(np.argmax(drawn)))


class Exp3:
    """EXP3: arms drawn by exponential weights, losses weighted by inverse probability."""

    def __init__(self, arms: int) -> None:
        self.losses = np.zeros(arms)
        self.rounds = 0

    def probs(self) -> FloatArray:
        """Probability of each arm; the learning rate falls with the rounds."""
        arms = len(self.losses)
        rate = math.sqrt(math.log(arms) / (arms * (self.rounds + 1))) if arms > 1 else 0.0
        weights = np.exp(-rate * (self.losses - self.losses.min()))
        found: FloatArray = weights / weights.sum()
        return found

    def choose(self, rng: Rng, place: NoiseKey) -> ArmChoice:
        """An arm drawn by its probability."""
        probs = self.probs()
        arm = rng.pick(probs, place)
        return ArmChoice(arm, float(probs[arm]))

    def learn(self, choice: ArmChoice, reward: float) -> None:
        """Add the loss over the probability of its arm, which is unbiased for every arm."""
        self.losses[choice.arm] += (1.0 - reward) / choice.chance
        self.rounds += 1


class NormalHedge:
    """NormalHedge: weights of experts from all their losses, without a learning rate."""

    def __init__(self, experts: int, fade: float = 1.0) -> None:
        self.regrets = np.zeros(experts)
        self.fade = fade

    def weights(self) -> FloatArray:
        """Weight of each expert; 0 for those that did no better than the mixture."""
        good = np.maximum(self.regrets, 0.0)
        if not good.any():
            return np.full(len(good), 1.0 / len(good))
        good /= good.max()  # the weights do not depend on the unit
        half = good**2 / (2.0 * normal_scale(good.tolist()))
        weights = good * np.exp(half - half.max())
        found: FloatArray = weights / weights.sum()
        return found

    def learn(self, losses: FloatArray) -> None:
        """Observe the loss of every expert, from 0 to 1."""
        self.regrets = self.fade * self.regrets + (float(self.weights() @ losses) - losses)


def normal_scale(regrets: Sequence[float]) -> float:
    """The scale at which the mean of exp(regret^2 / 2 scale) is e; the largest regret is 1."""
    low, high = 0.5 / (1.0 + math.log(len(regrets))), 0.5
    for _ in range(STEPS):
        middle = (low + high) / 2.0
        if sum(math.exp(regret**2 / (2.0 * middle)) for regret in regrets) > math.e * len(regrets):
            low = middle
        else:
            high = middle
    return high


class BanditRule(enum.Enum):
    """Rule by which an arm is chosen."""

    UCB = "ucb"  # the largest mean plus a bonus for few trials
    THOMPSON = "thompson"  # the largest draw from a posterior of the means
    BETA = "beta"  # the same for rewards that are right or wrong
    EXP3 = "exp3"  # exponential weights, for rewards that change with the text

    def make(self, arms: int, fade: float = 1.0) -> Bandit:
        """A bandit of this kind."""
        if self is BanditRule.EXP3:
            return Exp3(arms)
        if self is BanditRule.UCB:
            return Ucb(arms, fade)
        return (BetaThompson if self is BanditRule.BETA else GaussianThompson)(arms, fade)


def gain(outcome: Outcome, cost: CostModel) -> float:
    """Speedup of a round over plain decoding, by its own times and the cost curve."""
    times = outcome.times
    plain = cost.plain(outcome.rows, outcome.context, times.verify, outcome.trees)
    spent = times.draft + times.verify
    return len(outcome.tokens) * plain / spent if spent > 0 else 1.0


def beta_probs(yes: float, no: float) -> FloatArray:
    """The Beta distribution with these counts, on the grid `CHANCES`."""
    logs = (yes - 1) * np.log(CHANCES) + (no - 1) * np.log1p(-CHANCES)
    weights = np.exp(logs - logs.max())
    probs: FloatArray = weights / weights.sum()
    return probs


def prompt_key(prompt: Sequence[int]) -> int:
    """A key that separates the noise of requests under a part's own seed."""
    return zlib.crc32(np.asarray(prompt, np.int64).tobytes())

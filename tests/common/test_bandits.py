"""Bandit rules and expert algorithms: textbook values, the best arm found, changes followed."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sapwood.common.bandits import (
    ARM,
    ArmChoice,
    BanditRule,
    Exp3,
    GaussianThompson,
    NormalHedge,
    Ucb,
    normal_scale,
)
from sapwood.core.rng import KeyedRng, NoiseKey, Rng
from sapwood.testing.exact import outcomes

HERE = NoiseKey(7, ARM)


@settings(max_examples=30)
@given(
    st.lists(st.floats(0, 1), min_size=30, max_size=30),
    st.integers(2, 5),
    st.sampled_from([1.0, 0.9]),
)
def test_ucb_is_the_textbook_rule(rewards: list[float], arms: int, fade: float) -> None:
    bandit = Ucb(arms, fade)
    history = list[tuple[int, float]]()
    for reward in rewards:
        choice = bandit.choose(KeyedRng(0), HERE)
        age = {at: fade ** (len(history) - 1 - at) for at in range(len(history))}
        index = []
        for arm in range(arms):
            mine = [(age[at], got) for at, (played, got) in enumerate(history) if played == arm]
            count = sum(age.values())
            total = sum(weight for weight, _ in mine)
            mean = sum(weight * got for weight, got in mine) / total if mine else 0.0
            index.append(
                mean + math.sqrt(2 * math.log(max(count, 1.0)) / total) if mine else math.inf
            )
        assert index[choice.arm] == pytest.approx(max(index))
        bandit.learn(choice, reward)
        history.append((choice.arm, reward))


def play(bandit: Any, rates: Sequence[float], rounds: int, seed: int = 1) -> list[int]:
    """Arms chosen against coins of these rates."""
    coins = np.random.default_rng(seed)
    arms = []
    for at in range(rounds):
        choice = bandit.choose(KeyedRng(3), NoiseKey(at, ARM))
        bandit.learn(choice, float(coins.random() < rates[choice.arm]))
        arms.append(choice.arm)
    return arms


def test_a_bonus_by_all_rounds_together_never_explores() -> None:
    class Public(Ucb):  # the released code: one bonus for all arms
        def choose(self, rng: Rng, place: NoiseKey) -> ArmChoice:
            if (self.counts == 0).any():
                return super().choose(rng, place)
            return ArmChoice(
                int(
                    np.argmax(
                        self.means + np.sqrt(6 * np.log(self.counts.sum()) / self.counts.sum())
                    )
                )
            )

    ours, theirs = Ucb(2), Public(2)
    for bandit in (ours, theirs):
        bandit.learn(ArmChoice(0), 0.4)  # a lucky round of the worse arm
        bandit.learn(ArmChoice(1), 0.0)  # an unlucky one of the better
    for bandit, best in ((ours, True), (theirs, False)):
        arms = []
        for at in range(200):
            choice = bandit.choose(KeyedRng(0), NoiseKey(at))
            bandit.learn(choice, (0.3, 0.8)[choice.arm])
            arms.append(choice.arm)
        assert (sum(arms[-50:]) > 40) is best


@pytest.mark.parametrize("rule", BanditRule)
def test_every_rule_finds_the_best_arm(rule: BanditRule) -> None:
    arms = play(rule.make(3), (0.1, 0.9, 0.3), 800)
    assert arms[-200:].count(1) > 130


def test_a_fading_bandit_follows_a_change() -> None:
    steady = Ucb(2)
    fading = Ucb(2, fade=0.98)
    for bandit in (steady, fading):
        play(bandit, (0.9, 0.5), 1000)
    assert play(fading, (0.1, 0.5), 150).count(1) > play(steady, (0.1, 0.5), 150).count(1) + 40


def test_exp3_draws_by_its_law_and_charges_what_is_right_on_average() -> None:
    bandit = Exp3(3)
    losses = np.array((0.9, 0.2, 0.5))
    bandit.losses = np.array((4.0, 1.0, 2.5))
    bandit.rounds = 5
    rate = math.sqrt(math.log(3) / (3 * 6))
    weights = [math.exp(-rate * loss) for loss in (4.0, 1.0, 2.5)]
    assert bandit.probs() == pytest.approx([weight / sum(weights) for weight in weights])
    charged = np.zeros(3)
    unweighted = np.zeros(3)
    for chance, choice in outcomes(lambda rng: bandit.choose(rng, HERE)):
        assert choice.chance == pytest.approx(chance)
        after = Exp3(3)
        after.learn(choice, 1.0 - losses[choice.arm])
        charged += chance * after.losses
        unweighted[choice.arm] += chance * losses[choice.arm]
    assert charged == pytest.approx(losses)
    assert (
        np.abs(unweighted - losses).max() > 0.1
    )  # without the chance the seldom drawn arms look good


def test_thompson_draws_are_of_their_place_and_narrow_with_trials() -> None:
    few = GaussianThompson(2)
    many = GaussianThompson(2)
    few.counts = np.array((2.0, 2.0))
    few.sums = np.array((1.2, 0.8))
    many.counts = 1000 * few.counts
    many.sums = 1000 * few.sums
    chosen = [
        [bandit.choose(KeyedRng(0), NoiseKey(at, ARM)).arm for at in range(200)]
        for bandit in (few, many)
    ]
    assert 20 < chosen[0].count(1) < 100  # the worse arm is still tried
    assert chosen[1].count(1) == 0
    assert chosen[0] == [few.choose(KeyedRng(0), NoiseKey(at, ARM)).arm for at in range(200)]


@given(st.lists(st.floats(-5, 5), min_size=2, max_size=6))
def test_normal_hedge_solves_for_its_scale(regrets: list[float]) -> None:
    hedge = NormalHedge(len(regrets))
    hedge.regrets = np.array(regrets)
    good = np.maximum(hedge.regrets, 0)
    weights = hedge.weights()
    assert weights.sum() == pytest.approx(1)
    if not good.any():
        assert weights == pytest.approx(1 / len(regrets))
        return
    good /= good.max()
    scale = normal_scale(good.tolist())
    assert np.mean(np.exp(good**2 / (2 * scale))) == pytest.approx(math.e, rel=1e-6)
    expected = good / scale * np.exp(good**2 / (2 * scale))
    assert weights == pytest.approx(expected / expected.sum())
    assert (weights[good == 0] == 0).all()


def test_normal_hedge_follows_the_best_expert() -> None:
    random = np.random.default_rng(0)
    hedge = NormalHedge(4)
    mixed = np.zeros(4)
    for _ in range(500):
        losses = random.random(4) * (0.9, 0.7, 1.0, 0.95)
        mixed += float(hedge.weights() @ losses) - losses
        hedge.learn(losses)
    assert int(np.argmax(hedge.weights())) == 1
    assert mixed.max() < 3 * math.sqrt(500 * math.log(4)) / 2

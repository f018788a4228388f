"""The loss of a low-rank head: its slope by differences, its schedule, and that it learns."""

import numpy as np
import pytest

from sapwood.common.low_rank_head import (
    CheckedToken,
    LossWeights,
    LowRankHead,
    loss_slope,
    probs_of,
)
from sapwood.core.array_types import FloatArray

VOCAB, WIDTH = 7, 5


def checked(seed: int, accepted: bool) -> CheckedToken:
    rng = np.random.default_rng(seed)
    probs = probs_of(rng.standard_normal(VOCAB) * 2)
    return CheckedToken(
        rng.standard_normal(WIDTH), rng.standard_normal(VOCAB), seed % VOCAB, probs, accepted
    )


def loss(logits: FloatArray, one: CheckedToken, weights: LossWeights, baseline: float) -> float:
    """The formula, token by token."""
    logq = [z - np.log(sum(np.exp(logits))) for z in logits]
    divergence = sum(p * (np.log(p) - log) for p, log in zip(one.target_probs, logq, strict=True))
    reward = float(one.accepted)
    drafted = -logq[one.token]
    return float(
        weights.kl * divergence
        + weights.masked * reward * drafted
        + weights.policy * (reward - baseline) * drafted
    )


@pytest.mark.parametrize("accepted", [True, False])
@pytest.mark.parametrize(
    "weights", [LossWeights(1, 0, 0), LossWeights(0, 1, 0), LossWeights(0.2, 0.5, 0.7)], ids=str
)
def test_the_slope_is_that_of_differences(accepted: bool, weights: LossWeights) -> None:
    for seed in range(4):
        one = checked(seed, accepted)
        found = loss_slope(one, weights, baseline=0.3)
        for token in range(VOCAB):
            moved = []
            for step in (1e-6, -1e-6):
                logits = one.logits.copy()
                logits[token] += step
                moved.append(loss(logits, one, weights, 0.3))
            assert found[token] == pytest.approx((moved[0] - moved[1]) / 2e-6, abs=1e-7)


def test_kl_comes_first_and_rewards_later() -> None:
    head = LowRankHead(VOCAB, WIDTH, 2, 0.01, warmup=10, anchor=0.2)
    seen = []
    for learned in (0, 10, 15, 20, 99):
        head.learned = learned
        found = head.weights()
        seen.append((round(found.kl, 6), found.masked, found.policy))
    assert seen == [(1, 0, 0), (1, 0, 0), (0.6, 0.5, 0.5), (0.2, 1, 1), (0.2, 1, 1)]


def test_a_new_head_corrects_nothing_and_a_taught_one_speaks_as_the_target() -> None:
    head = LowRankHead(VOCAB, WIDTH, 3, 0.05, warmup=10_000, anchor=0.2)
    rng = np.random.default_rng(1)
    states = rng.standard_normal((4, WIDTH))
    goals = [probs_of(3 * rng.standard_normal(VOCAB)) for _ in states]
    assert not head.correction(states[0]).any()
    for _ in range(150):
        head.learn(
            [
                CheckedToken(state, head.correction(state), 0, goal, False)
                for state, goal in zip(states, goals, strict=True)
            ]
        )
    for state, goal in zip(states, goals, strict=True):
        assert np.abs(probs_of(head.correction(state)) - goal).max() < 0.2
        assert head.correction(state).argmax() == goal.argmax()


def test_what_is_not_finite_teaches_nothing() -> None:
    head = LowRankHead(VOCAB, WIDTH, 2, 0.05, warmup=4, anchor=0.2)
    one = checked(0, True)
    bad = CheckedToken(one.state * np.inf, one.logits, 0, one.target_probs, True)
    before = head.up.copy(), head.down.copy()
    with np.errstate(all="ignore"):
        head.learn([bad])
    assert np.array_equal(head.up, before[0])
    assert np.array_equal(head.down, before[1])

"""The chi-square machinery: against tables, against simulation, and its promise of power."""

import math

import numpy as np
import pytest

from sapwood.certify.statistics import StatisticalTest as Result
from sapwood.certify.statistics import (
    against_probs,
    chi_square_tail,
    combined,
    merged,
    needed,
    noncentral_tail,
    rare,
    threshold,
    two_samples,
)

# (statistic, freedom, tail), as scipy.stats.chi2.sf gives them
CENTRAL = [
    (3.841458820694124, 1, 0.05),
    (6.6348966010212145, 1, 0.01),
    (18.307038053275146, 10, 0.05),
    (0.5, 3, 0.9188914116546985),
    (124.3421134, 100, 0.05),
    (60.0, 8, 4.661032e-10),
    (1.0, 1, 0.31731050786291415),
]


@pytest.mark.parametrize(("statistic", "freedom", "tail"), CENTRAL)
def test_tails_are_those_of_the_tables(statistic: float, freedom: int, tail: float) -> None:
    assert chi_square_tail(statistic, freedom) == pytest.approx(tail, rel=2e-4)


@pytest.mark.parametrize("freedom", [1, 2, 5, 30])
@pytest.mark.parametrize("level", [0.5, 0.05, 1e-4])
def test_thresholds_are_exceeded_as_often_as_they_say(freedom: int, level: float) -> None:
    assert chi_square_tail(threshold(freedom, level), freedom) == pytest.approx(level, rel=1e-4)


def test_two_degrees_of_freedom_have_a_closed_form() -> None:
    for value in (0.1, 1.0, 7.0, 40.0):
        assert chi_square_tail(value, 2) == pytest.approx(math.exp(-value / 2), rel=1e-12)


@pytest.mark.parametrize(("freedom", "noncentrality"), [(1, 4.0), (4, 12.0), (9, 50.0)])
def test_noncentral_tails_are_those_of_shifted_squares(freedom: int, noncentrality: float) -> None:
    noise = np.random.default_rng(5).standard_normal((200_000, freedom))
    noise[:, 0] += math.sqrt(noncentrality)
    values = (noise**2).sum(1)
    for statistic in (freedom, freedom + noncentrality, 2 * (freedom + noncentrality)):
        assert noncentral_tail(statistic, freedom, noncentrality) == pytest.approx(
            float((values > statistic).mean()), abs=0.005
        )


def test_the_needed_noncentrality_gives_the_power() -> None:
    value = needed(8, 0.001, 0.99)
    assert noncentral_tail(threshold(8, 0.001), 8, value) == pytest.approx(0.99, abs=1e-5)
    assert needed(1, 0.05, 0.8) == pytest.approx(
        7.849, abs=2e-3
    )  # the textbook's (1.96 + 0.8416)^2


def scipy_cases() -> list[tuple[float, int, float]]:
    noise = np.random.default_rng(0)
    return [
        (float(noise.uniform(0.01, 80)), int(noise.integers(1, 60)), float(noise.uniform(0.1, 60)))
        for _ in range(40)
    ]


@pytest.mark.parametrize(("statistic", "freedom", "noncentrality"), scipy_cases())
def test_all_of_it_agrees_with_scipy(statistic: float, freedom: int, noncentrality: float) -> None:
    stats = pytest.importorskip("scipy.stats", reason="scipy is missing: pip install scipy")
    assert chi_square_tail(statistic, freedom) == pytest.approx(
        float(stats.chi2.sf(statistic, freedom)), rel=1e-9
    )
    expected = float(stats.ncx2.sf(statistic, freedom, noncentrality))
    assert noncentral_tail(statistic, freedom, noncentrality) == pytest.approx(
        expected, rel=1e-6, abs=1e-12
    )


# ------------------------------------------------------------------------------------ tests of data
def all_probs(noise: np.random.Generator, count: int, bins: int = 6) -> np.ndarray:
    found: np.ndarray = noise.dirichlet([0.8] * bins, size=count)
    return found


def drawn(noise: np.random.Generator, chances: np.ndarray) -> list[int]:
    return [int(noise.choice(len(row), p=row)) for row in chances]


def test_honest_draws_fail_as_often_as_the_level_says() -> None:
    noise = np.random.default_rng(1)
    values = []
    for _ in range(300):
        each = all_probs(noise, 150)
        values.append(against_probs(each, drawn(noise, each)).p_value)
    assert 0.02 < np.mean(np.array(values) < 0.05) < 0.09
    assert 0.4 < np.mean(values) < 0.6


def test_draws_from_another_law_are_caught_where_the_power_says_so() -> None:
    noise = np.random.default_rng(2)
    probs = np.array([0.3, 0.25, 0.2, 0.15, 0.1])
    test = against_probs(np.tile(probs, (2000, 1)), drawn(noise, np.tile(probs, (2000, 1))))
    caught = test.caught(0.001, 0.99)
    assert test.p_value > 0.001
    moved = probs + caught * np.array(
        [1.0, -0.5, -0.5, 0.0, 0.0]
    )  # a departure of just that total variation
    hits = 0
    for _ in range(100):
        hits += (
            against_probs(
                np.tile(probs, (2000, 1)), drawn(noise, np.tile(moved, (2000, 1)))
            ).p_value
            < 0.001
        )
    assert hits >= 96  # 99 %, less three standard deviations


def test_one_law_for_all_is_the_chi_square_of_the_textbook() -> None:
    probs = np.array([0.5, 0.3, 0.2])
    seen = [0] * 60 + [1] * 25 + [2] * 15
    test = against_probs(np.tile(probs, (100, 1)), seen)
    assert test.statistic == pytest.approx(100 / 50 + 25 / 30 + 25 / 20)
    assert test.freedom == 2
    assert test.departure == pytest.approx(0.1)


def test_two_samples_of_one_law_pass_and_of_two_laws_fail() -> None:
    noise = np.random.default_rng(3)
    probs = np.array([0.4, 0.3, 0.2, 0.1])
    other = np.array([0.3, 0.3, 0.2, 0.2])
    one, two, three = (
        noise.multinomial(1500, chances).tolist() for chances in (probs, probs, other)
    )
    assert two_samples(one, two).p_value > 0.01
    assert two_samples(one, three).p_value < 1e-6


def test_rare_bins_are_put_together() -> None:
    groups = merged(np.array([100.0, 1.0, 2.0, 50.0, 0.0, 3.0]))
    assert sorted(place for group in groups for place in group) == list(range(6))
    assert all(
        sum([100.0, 1.0, 2.0, 50.0, 0.0, 3.0][place] for place in group) >= 5 for group in groups
    )


def test_nothing_seen_proves_nothing() -> None:
    empty = against_probs(np.zeros((0, 4)) + 0.25, [])
    assert empty.p_value == 1
    assert empty.caught(0.01, 0.99) == 1
    assert combined([]).freedom == 0
    assert Result(0.0, 0, 0, 0.0).p_value == 1


def test_a_rare_fault_is_seen_if_it_would_come_often_enough() -> None:
    assert rare(460.5) == pytest.approx(0.01, rel=1e-3)
    assert rare(0) == 1

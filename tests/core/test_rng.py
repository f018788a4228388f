"""Noise is a pure function of its place, and behaves like noise."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapwood.core.array_types import FloatArray, IntArray
from sapwood.core.rng import KeyedRng, NoiseKey, NoiseUse, mix, path_key, uniforms

LAW = np.array([0.5, 0.0, 0.25, 0.15, 0.1])
WORDS = st.integers(-(2**70), 2**70)
PLACES = st.builds(
    NoiseKey, WORDS, st.integers(0, 2), st.integers(0, 4096), st.integers(0, 2**64 - 1)
)


def chi_square(counts: FloatArray | IntArray, probs: FloatArray) -> float:
    """Pearson's statistic over the tokens of positive probability."""
    expected = counts.sum() * probs
    assert (counts[probs == 0] == 0).all()
    return float((((counts - expected) ** 2)[probs > 0] / expected[probs > 0]).sum())


@given(st.integers(-(2**70), 2**70), PLACES)
def test_noise_depends_on_seed_and_place_alone(seed: int, place: NoiseKey) -> None:
    first = KeyedRng(seed)
    second = KeyedRng(seed)
    second.flip(0.3, NoiseKey(1))  # what was drawn before does not matter
    second.pick(LAW, NoiseKey(2))
    assert first.pick(LAW, place) == second.pick(LAW, place)
    assert first.flip(0.5, place) == second.flip(0.5, place)
    assert LAW[first.pick(LAW, place)] > 0


@given(st.integers(0, 2**64 - 1), st.integers(1, 200))
def test_uniforms_lie_strictly_between_zero_and_one_and_extend(key: int, count: int) -> None:
    numbers = uniforms(key, count)
    assert ((numbers > 0) & (numbers < 1)).all()
    assert np.array_equal(uniforms(key, count + 7)[:count], numbers)


def test_uniforms_fill_the_interval_evenly() -> None:
    counts = np.histogram(uniforms(12345, 100_000), bins=20, range=(0, 1))[0]
    assert chi_square(counts, np.full(20, 0.05)) < 43.8  # 0.1 % of 19 degrees of freedom


@pytest.mark.parametrize("use", [NoiseUse.TARGET, NoiseUse.ACCEPT, NoiseUse.DRAFT])
def test_picks_follow_the_law_across_positions(use: int) -> None:
    rng = KeyedRng(1)
    picks = [rng.pick(LAW, NoiseKey(position, use)) for position in range(4000)]
    assert chi_square(np.bincount(picks, minlength=5), LAW) < 16.3  # 0.1 % of 3 degrees of freedom


@pytest.mark.parametrize("vary", ["seed", "slot", "path"])
def test_picks_follow_the_law_across_seeds_slots_and_paths(vary: str) -> None:
    counts = np.zeros(5)
    for index in range(4000):
        place = NoiseKey(9, slot=index * (vary == "slot"), path=index * (vary == "path"))
        counts[KeyedRng(index * (vary == "seed")).pick(LAW, place)] += 1
    assert chi_square(counts, LAW) < 16.3


@pytest.mark.parametrize("chance", [0.0, 0.03, 0.5, 0.9, 1.0])
def test_flips_come_up_with_their_chance(chance: float) -> None:
    rng = KeyedRng(4)
    heads = sum(rng.flip(chance, NoiseKey(position, NoiseUse.ACCEPT)) for position in range(4000))
    if chance in (0.0, 1.0):
        assert heads == 4000 * chance
    else:
        assert abs(heads - 4000 * chance) < 3.3 * math.sqrt(4000 * chance * (1 - chance))


def test_different_places_are_independent() -> None:
    probs = np.full(4, 0.25)
    rng = KeyedRng(11)
    here = NoiseKey(0)
    neighbours = [
        NoiseKey(1),
        NoiseKey(0, NoiseUse.ACCEPT),
        NoiseKey(0, slot=1),
        NoiseKey(0, path=1),
    ]
    for other in neighbours:
        table = np.zeros((4, 4))
        for step in range(3000):
            first = rng.pick(probs, here._replace(position=7 * step))
            second = rng.pick(probs, other._replace(position=7 * step + other.position))
            table[first, second] += 1
        assert chi_square(table.ravel(), np.full(16, 1 / 16)) < 37.7, (
            other
        )  # 0.1 % of 15 degrees of freedom


def test_a_slightly_different_law_rarely_changes_the_token() -> None:
    rng = KeyedRng(3)
    probs = np.array([0.4, 0.3, 0.2, 0.1])
    near = np.array([0.401, 0.299, 0.2, 0.1])
    far = np.array([0.1, 0.2, 0.3, 0.4])
    changed = [
        sum(rng.pick(probs, NoiseKey(at)) != rng.pick(other, NoiseKey(at)) for at in range(2000))
        for other in (near, far)
    ]
    assert changed[0] < 2000 * 0.005  # about the distance of the laws, 0.001
    assert changed[1] > 2000 * 0.3


def test_a_token_out_of_the_support_shifts_no_other() -> None:
    rng = KeyedRng(8)
    narrow = np.array([0.5, 0.5, 0.0, 0.0])
    wide = np.array([0.5, 0.5, 0.0, 0.0, 0.0, 0.0])
    assert [rng.pick(narrow, NoiseKey(at)) for at in range(200)] == [
        rng.pick(wide, NoiseKey(at)) for at in range(200)
    ]


def test_big_seeds_and_negative_positions_have_noise_of_their_own() -> None:
    seeds = [0, 1, -1, 2**63, 2**64 - 2, 10**30]
    texts = {
        tuple(KeyedRng(seed).pick(LAW, NoiseKey(at)) for at in range(-20, 20)) for seed in seeds
    }
    assert len(texts) == len(seeds)
    assert KeyedRng(-1).seed == 2**64 - 1
    assert KeyedRng(2**64 + 5).pick(LAW, NoiseKey(0)) == KeyedRng(5).pick(LAW, NoiseKey(0))


def test_vanishing_probabilities_are_no_cause_for_alarm() -> None:
    probs = np.array([1.0, 5e-324, 1e-310])
    assert {KeyedRng(seed).pick(probs, NoiseKey(0)) for seed in range(50)} == {0}


@given(st.lists(st.integers(0, 2**40), max_size=6), st.lists(st.integers(0, 2**40), max_size=6))
def test_paths_that_differ_have_different_keys(one: list[int], other: list[int]) -> None:
    assert (path_key(one) == path_key(other)) == (one == other)
    assert 0 <= path_key(one) < 2**64


def test_mix_is_a_permutation_as_far_as_one_can_see() -> None:
    assert len({mix(word) for word in range(5000)}) == 5000
    assert mix(2**64 + 3) == mix(3)

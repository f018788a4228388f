"""Ratios of sums over prompts and their bootstrap intervals, on cases with a known answer."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapwood.bench import groups
from sapwood.bench.groups import RunGroup, pace, ratios
from sapwood.bench.measure import BenchRun
from tests.helpers.bench_records import run, seeded

seconds = st.floats(0.01, 100.0)
lengths = st.integers(1, 60)
pairs = st.lists(st.tuples(lengths, seconds, lengths, seconds), min_size=1, max_size=8)


def group_of(made: list[tuple[int, float, int, float]], talks: list[str] | None = None) -> RunGroup:
    """A group of (tokens, seconds) of a recipe, then of plain decoding."""
    return RunGroup([run(a, b) for a, b, _, _ in made], [run(c, d) for _, _, c, d in made], talks)


# -------------------------------------------------------------------------------------- speedup
@given(pairs)
def test_the_speedup_is_plain_seconds_per_token_over_the_recipes(
    made: list[tuple[int, float, int, float]],
) -> None:
    ours = sum(b for _, b, _, _ in made) / sum(a for a, _, _, _ in made)
    plain = sum(d for _, _, _, d in made) / sum(c for _, _, c, _ in made)
    assert group_of(made).speedup == pytest.approx(plain / ours)


@given(pairs, st.floats(0.1, 10.0))
def test_a_recipe_that_is_faster_by_one_factor_everywhere_has_that_speedup_exactly(
    made: list[tuple[int, float, int, float]], factor: float
) -> None:
    plain = [run(tokens, spent) for tokens, spent, _, _ in made]
    fast = [run(tokens, spent / factor) for tokens, spent, _, _ in made]
    group = RunGroup(fast, plain)
    assert group.speedup == pytest.approx(factor)
    assert group.interval == pytest.approx((factor, factor))


@given(pairs)
def test_the_interval_lies_between_the_slowest_and_the_fastest_prompt(
    made: list[tuple[int, float, int, float]],
) -> None:
    same = [(tokens, ours, tokens, plain) for tokens, ours, _, plain in made]
    each = [plain / ours for _, ours, _, plain in same]
    low, high = group_of(same).interval
    assert min(each) * (1 - 1e-9) <= low <= high <= max(each) * (1 + 1e-9)


def test_a_long_prompt_counts_more_than_a_short_one() -> None:
    group = group_of([(10, 1.0, 10, 2.0), (90, 30.0, 90, 30.0)])
    assert group.speedup == pytest.approx(32 / 31)  # not the mean of 2 and 1


def test_tokens_that_were_not_timed_are_left_out_of_the_pace() -> None:
    peer = RunGroup([run(11, 5.0, timed=10)], [run(10, 10.0)])
    assert peer.speedup == pytest.approx(2.0)
    told = RunGroup([BenchRun(said=21, timed=20, verify=5.0)], [run(10, 10.0)])
    assert told.speedup == pytest.approx(4.0)


def test_without_seconds_there_is_no_speedup() -> None:
    group = RunGroup([BenchRun(said=0, timed=0)], [run(10, 10.0)])
    assert math.isnan(group.speedup)
    assert all(map(math.isnan, group.interval))
    assert all(map(math.isnan, group.rate_interval))


# ------------------------------------------------------------------------------------- intervals
def test_two_prompts_have_the_quantiles_of_their_four_draws() -> None:
    # Of two prompts, a quarter of all draws is the first twice and a quarter the second twice,
    # so 2.5 and 97.5 per cent are the two prompts themselves.
    group = group_of([(10, 10.0, 10, 10.0), (10, 2.5, 10, 10.0)])
    assert group.interval == pytest.approx((1.0, 4.0))
    assert group.rate_interval == pytest.approx((1.0, 4.0))


def test_the_interval_of_many_prompts_is_that_of_the_normal_law() -> None:
    noise = seeded(5)
    spent = noise.gamma(25.0, 1 / 25, 200)  # mean 1, deviation 0.2
    group = RunGroup([run(10, float(each)) for each in spent], [run(10, 1.0)] * 200)
    mean = float(spent.mean())
    error = float(spent.std() / math.sqrt(200))
    low, high = group.interval
    assert low == pytest.approx(1 / (mean + 1.96 * error), rel=0.01)
    assert high == pytest.approx(1 / (mean - 1.96 * error), rel=0.01)


def test_intervals_cover_the_truth_about_as_often_as_they_say() -> None:
    noise = seeded(11)
    inside = 0
    for _ in range(60):
        spent = noise.gamma(16.0, 1 / 16, 40)
        low, high = RunGroup([run(10, float(x)) for x in spent], [run(10, 1.0)] * 40).interval
        inside += low <= 1.0 <= high
    assert 50 <= inside <= 60  # 57 expected


def test_intervals_are_those_of_a_slow_bootstrap() -> None:
    noise = seeded(2)
    made = [(int(a), float(b), int(a), float(c)) for a, b, c in noise.uniform(5, 40, (7, 3))]
    group = group_of(made)
    draws = np.random.default_rng(0).integers(7, size=(groups.RESAMPLES, 7))
    found = []
    for draw in draws.tolist():
        ours = sum(made[at][1] for at in draw) / sum(made[at][0] for at in draw)
        plain = sum(made[at][3] for at in draw) / sum(made[at][2] for at in draw)
        found.append(plain / ours)
    ordered = sorted(found)
    low, high = group.interval
    assert ordered[20] <= low <= ordered[30]  # 25 of a thousand lie below
    assert ordered[-31] <= high <= ordered[-21]


def test_the_yield_interval_counts_tokens_and_passes() -> None:
    runs = [run(12, 1.0, passes=6), run(12, 1.0, passes=3)]
    group = RunGroup(runs, runs)
    assert group.yield_interval == pytest.approx((2.0, 4.0))
    even = RunGroup(runs[:1] * 3, runs[:1] * 3)
    assert even.yield_interval == (2.0, 2.0)


def test_intervals_do_not_depend_on_who_asked_before() -> None:
    made = [(10, float(x), 10, 3.0) for x in seeded(9).uniform(1, 2, 9)]
    first = group_of(made).interval
    np.random.default_rng().integers(5, size=100)
    group_of(made[::-1]).rate_interval  # noqa: B018
    assert group_of(made).interval == first


# --------------------------------------------------------------------------------- conversations
@given(pairs)
def test_one_conversation_has_no_spread(made: list[tuple[int, float, int, float]]) -> None:
    group = group_of(made, ["talk"] * len(made))
    assert group.prompts == 1
    assert group.interval == pytest.approx((group.speedup, group.speedup))


def test_turns_stay_with_their_conversation_wherever_they_stand() -> None:
    made = [(10, 1.0, 10, 2.0), (10, 4.0, 10, 4.0), (10, 1.0, 10, 2.0), (10, 4.0, 10, 4.0)]
    apart = group_of([made[0], made[2], made[1], made[3]], ["a", "a", "b", "b"])
    mixed = group_of(made, ["a", "b", "a", "b"])
    assert mixed.interval == apart.interval
    assert mixed.interval == pytest.approx((1.0, 2.0))
    assert mixed.yield_interval == (1.0, 1.0)


def test_labels_of_any_kind_tell_conversations_apart() -> None:
    group = RunGroup([run(1, 1.0)] * 4, [run(1, 1.0)] * 4, [("x", 1), "x", 3, ("x", 1)])
    assert group.prompts == 3
    assert RunGroup([run(1, 1.0)] * 4, [run(1, 1.0)] * 4).prompts == 4


# ------------------------------------------------------------------------------------- the parts
def test_pace_sums_before_it_divides() -> None:
    runs = [run(10, 10.0), run(30, 60.0)]
    draws = np.array([[0, 0], [0, 1], [1, 1]])
    assert pace(runs, draws).tolist() == [1.0, 70 / 40, 2.0]
    assert ratios(runs, runs, draws).tolist() == [1.0, 1.0, 1.0]


def test_a_run_without_tokens_has_no_pace_and_no_warning() -> None:
    assert np.isinf(pace([BenchRun(verify=1.0)], np.array([[0]]))).all()
    assert np.isnan(pace([BenchRun()], np.array([[0]]))).all()

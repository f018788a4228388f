"""Whole steps decide whether trees pay where many requests share a pass."""

import pytest

from sapwood.controllers.throughput_stats import (
    MISHAP,
    MOST_ROUNDS,
    REGRET,
    SOON,
    StepTimes,
    ThroughputStats,
)


def stats(slack: float = 0.03) -> ThroughputStats:
    return ThroughputStats(slack=slack, patience=24, first_pause=8, longest=64, probe=100)


def rest_and_time(found: ThroughputStats, requests: int, seconds: float) -> None:
    """A step of a rest."""
    found.rested = True
    found.settle_step(requests, requests, 0, seconds)


def draft(found: ThroughputStats, requests: int, tokens: int, seconds: float) -> None:
    """A step with trees."""
    found.rested = False
    found.settle_step(requests, tokens, 4 * requests, seconds)


def test_steps_without_trees_are_timed_before_trees_are_tried() -> None:
    found = stats()
    draft(found, 8, 20, 1.0)
    assert found.rest == 8
    assert found.pause == 8  # nothing has failed
    other = stats(slack=1.0)  # never rests
    draft(other, 8, 20, 1.0)
    assert other.rest == 0


def test_trees_that_make_steps_slower_rest_for_as_long_as_their_try_was_dear() -> None:
    found = stats()
    rest_and_time(found, 8, 0.8)  # 0.1 s a token
    found.rest = 0
    for _ in range(SOON):
        draft(found, 8, 16, 4.0)  # the first ones may compile: they only count as a cost
        assert found.rest == 0
    draft(found, 8, 16, 4.0)  # 0.25 s a token
    excess = (SOON + 1) * (4.0 - 16 * 0.1)
    assert found.rest == int(excess / (REGRET * 0.8)) > found.longest
    assert (found.step_times.tried, found.step_times.excess) == (0, 0.0)


def test_trees_that_make_steps_faster_go_on() -> None:
    found = stats()
    rest_and_time(found, 8, 0.8)
    found.rest = 0
    for _ in range(3 * SOON):
        draft(found, 8, 16, 1.2)
        assert found.rest == 0
    assert not found.step_times.slower(8, 0.03)


def test_loads_are_compared_with_their_like() -> None:
    times = StepTimes()
    times.add(8, 8, 0.8, drafted=False)
    assert times.plain_seconds(9) == pytest.approx(0.1)  # 8 to 15 requests are alike
    assert times.plain_seconds(16) == 0.0
    assert times.rest_rounds(16) == 0
    times.excess = 1e9
    assert times.rest_rounds(8) == MOST_ROUNDS


def test_a_mishap_does_not_spoil_the_times() -> None:
    times = StepTimes()
    times.add(8, 8, 0.8, drafted=False)
    times.add(8, 8, 80.0, drafted=False)
    assert times.plain_seconds(8) <= MISHAP * 0.1


def test_steps_of_other_recipes_are_not_counted() -> None:
    found = stats()
    found.rested = True
    found.settle_step(8, 16, 12, 1.0)  # others drafted while this one rested
    assert found.step_times == StepTimes()


def test_drafts_that_are_not_worth_sending_are_tries_too() -> None:
    found = stats()
    rest_and_time(found, 8, 0.8)
    found.rest = 0
    found.rested = False
    for _ in range(SOON + 1):
        assert found.rest == 0
        found.settle_step(8, 8, 0, 1.0)  # no tree, and a quarter longer
    assert found.rest > 0


def test_rounds_without_drafts_that_take_no_longer_do_not_rest() -> None:
    found = stats()
    rest_and_time(found, 8, 0.8)
    found.rest = 0
    found.rested = False
    for _ in range(4 * SOON):
        found.settle_step(8, 8, 0, 0.8)
    assert found.rest == 0

"""Whole steps decide whether trees pay where many requests share a pass."""

import pytest

from sapwood.controllers.throughput_stats import (
    CREDIT,
    ENTRY,
    MISHAP,
    MOST_DEBT,
    MOST_ROUNDS,
    MOST_STEPS,
    REGRET,
    SOON,
    StepTimes,
    ThroughputStats,
    try_steps,
)

ROOTS = 0.5  # predicted seconds of a pass over eight roots
STEP = 0.8  # of a step without drafts


def stats(slack: float = 0.03) -> ThroughputStats:
    return ThroughputStats(slack=slack, patience=24, first_pause=8, longest=64, probe=100)


def rest_and_time(found: ThroughputStats, requests: int = 8, seconds: float = STEP) -> None:
    """A step of a rest."""
    found.rested = True
    found.settle_step(requests, requests, 0, ROOTS, seconds)


def draft(found: ThroughputStats, tokens: int, seconds: float, requests: int = 8) -> None:
    """A step with trees."""
    found.rested = False
    found.settle_step(requests, tokens, 4 * requests, ROOTS, seconds)


def test_steps_without_trees_are_timed_before_trees_are_tried() -> None:
    found = stats()
    draft(found, 20, 1.0)
    assert found.rest == 8
    assert found.pause == 8  # nothing has failed
    other = stats(slack=1.0)  # never rests
    draft(other, 20, 1.0)
    assert other.rest == 0


def test_trees_that_make_steps_slower_rest_until_their_try_is_repaid() -> None:
    found = stats()
    rest_and_time(found)
    found.rest = 0
    steps = 0
    while not found.rest:
        draft(found, 16, 4.0)  # plain decoding takes 1.6 s for 16 tokens
        steps += 1
    assert steps == ENTRY + 1 + int(MOST_STEPS * STEP / 2.4)  # it has lost that much
    # the first ones may compile, and all seconds allow for some loss
    debt = (steps - SOON) * 2.4 - REGRET * steps * 4.0
    assert found.rest == pytest.approx(debt / (REGRET * STEP), abs=2)
    assert found.rest > found.longest
    for _ in range(found.rest):
        rest_and_time(found)
    assert found.step_times.debt <= 0


def test_a_small_loss_is_allowed_and_small_losses_add_up() -> None:
    found = stats()
    rest_and_time(found)
    found.rest = 0
    steps = 0
    while not found.rest:
        draft(found, 8, 1.03 * STEP)
        steps += 1
    each = (0.03 - 1.03 * REGRET) * STEP
    assert steps - SOON == pytest.approx(MOST_DEBT * STEP / 8 / each, abs=2)
    assert steps > ENTRY + try_steps(8)


def test_a_try_shows_what_its_steps_gain_before_it_is_judged() -> None:
    found = stats()
    rest_and_time(found)
    found.rest = 0
    for _ in range(SOON):  # of earlier tries
        draft(found, 8, STEP)
    found.rested = True
    rest_and_time(found)
    found.rest = 0
    draft(found, 16, 9 * STEP)  # every request reads what was said in the rest
    for _ in range(1, ENTRY):
        draft(found, 16, 2 * STEP)
    assert found.step_times.debt > 6 * STEP  # none of it counts as a mishap
    for _ in range(2 * try_steps(8)):  # then trees gain, and repay it
        assert found.rest == 0
        draft(found, 16, 1.5 * STEP)
    assert found.step_times.debt <= 0


def test_a_try_that_only_loses_a_little_ends_once_it_is_judged() -> None:
    found = stats()
    rest_and_time(found)
    found.rest = 0
    steps = 0
    while not found.rest:
        draft(found, 8, 1.2 * STEP)
        steps += 1
    assert steps == ENTRY + try_steps(8)


def test_trees_that_make_steps_faster_go_on_and_gains_are_not_kept_for_ever() -> None:
    found = stats()
    rest_and_time(found)
    found.rest = 0
    for _ in range(30 * SOON):
        draft(found, 16, 1.2)
        assert found.rest == 0
    assert found.step_times.debt == pytest.approx(-CREDIT * STEP / 8)


def test_a_longer_text_or_a_busy_machine_is_not_a_loss() -> None:
    found = stats()
    rest_and_time(found)
    found.rest = 0
    for _ in range(4 * SOON):
        found.rested = False
        found.settle_step(8, 8, 8, 3 * ROOTS, 3 * STEP)
    assert found.rest == 0
    assert found.step_times.debt <= 0


def test_many_requests_show_in_few_steps_whether_trees_gain() -> None:
    assert [try_steps(requests) for requests in (2, 8, 32, 128)] == [24, 16, 4, 4]


def test_loads_are_compared_with_their_like() -> None:
    times = StepTimes()
    times.add(8, 8, ROOTS, STEP, drafted=False)
    assert times.usual(9, ROOTS) == pytest.approx(STEP)  # 8 to 15 requests are alike
    assert times.usual(9, 2 * ROOTS) == pytest.approx(2 * STEP)
    assert times.usual(16, ROOTS) == 0.0
    assert times.rest_rounds(16, ROOTS) == 0
    times.debt = times.recent = 1e9
    assert times.rest_rounds(8, ROOTS) == MOST_ROUNDS


def test_a_mishap_does_not_spoil_the_times() -> None:
    times = StepTimes()
    times.add(8, 8, ROOTS, STEP, drafted=False)
    times.add(8, 8, ROOTS, 100 * STEP, drafted=False)
    assert times.usual(8, ROOTS) <= MISHAP * STEP
    times = StepTimes()
    times.add(8, 8, ROOTS, STEP, drafted=False)
    times.tried = ENTRY
    for _ in range(SOON + 1):
        times.add(8, 16, ROOTS, 100 * STEP, drafted=True)
    assert times.debt <= MISHAP * 2 * STEP
    times.tried = 0
    times.add(8, 16, ROOTS, 100 * STEP, drafted=True)  # 8 requests join
    assert times.debt <= MISHAP * (8 + 1) * 2 * STEP


def test_steps_of_other_recipes_are_not_counted() -> None:
    found = stats()
    found.rested = True
    found.settle_step(8, 16, 12, ROOTS, 1.0)  # others drafted while this one rested
    assert found.step_times == StepTimes()


def test_drafts_that_are_not_worth_sending_are_tries_too() -> None:
    found = stats()
    rest_and_time(found)
    found.rest = 0
    found.rested = False
    for _ in range(ENTRY + try_steps(8)):
        found.settle_step(8, 8, 0, ROOTS, 1.25 * STEP)  # no tree, and a quarter longer
    assert found.rest > 0


def test_rounds_that_take_no_longer_do_not_rest() -> None:
    found = stats()
    rest_and_time(found)
    found.rest = 0
    found.rested = False
    for _ in range(40 * SOON):
        found.settle_step(8, 8, 0, ROOTS, STEP)
    assert found.rest == 0

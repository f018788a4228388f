"""Arrivals that double: their times, and the numbers of each phase."""

import math
from dataclasses import asdict

import pytest
from benchmarks.arrivals import ArrivalRun, Doubling, OwnClock, in_turns, quantile

from sapwood.backends.toy import ToyBackend
from sapwood.core.sampling import Sampling
from sapwood.engine.cost_model import CostModel
from tests.helpers.scheduler_harness import Stage, Timed, copy_of

# a pass takes 10 ms, whatever is in it
FLAT = CostModel([1, 1024], [0], [[0.01, 0.01]])


def test_the_rate_doubles_from_phase_to_phase() -> None:
    load = Doubling(first=2.0, seconds=3.0, phases=3)
    counts = [sum(load.phase(time) == phase for time in load.times) for phase in range(3)]
    assert counts == [6, 12, 24]
    assert load.rates == [2.0, 4.0, 8.0]
    assert load.times == sorted(load.times)
    assert load.phase(9.0) == 3


def test_steps_are_counted_in_the_phase_in_which_they_end() -> None:
    target = Timed("target", context=512, curve=FLAT)
    stage = Stage(target, "plain", copy_of(FLAT))

    def sleep(seconds: float) -> None:
        target.time[0] += seconds

    load = Doubling(first=2.0, seconds=1.0, phases=2)
    run = ArrivalRun(stage.scheduler, load, sleep, [[0, 1, 2]], Sampling(max_tokens=8))
    first, second = run.run()
    assert (first.tokens, second.tokens) == (16, 32)
    assert first.running == second.running == 1
    assert first.p50 == first.p99 == first.per_token == pytest.approx(0.01)
    # the first pass of each request prefills its prompt
    assert first.busy == pytest.approx(0.18, abs=0.021)
    assert first.tokens_per_second == pytest.approx(16 / first.busy)
    assert stage.pool.idle


def test_what_has_not_ended_with_the_last_phase_is_cancelled() -> None:
    target = Timed(ToyBackend().salt, context=512, curve=FLAT)
    stage = Stage(target, "plain", copy_of(FLAT))
    load = Doubling(20.0, 0.1, 1)
    sampling = Sampling(max_tokens=400)
    run = ArrivalRun(stage.scheduler, load, lambda _: None, [[0, 1, 2]], sampling)
    [phase] = run.run()
    assert phase.tokens < 20
    assert phase.per_token == math.inf
    assert stage.pool.idle


def test_a_clock_stands_still_between_turns_and_skips_idle_time() -> None:
    time = [5.0]
    clock = OwnClock(lambda: time[0])

    def work() -> bool:
        time[0] += 2.0
        assert clock() == 2.0
        return True

    assert clock() == 0
    assert clock.run(work)
    time[0] += 100.0
    assert clock() == 2.0
    clock.skip(1.0)
    assert clock() == 3.0


def test_runs_in_turns_have_the_numbers_that_each_has_alone() -> None:
    def made(seconds: list[float]) -> tuple[OwnClock, ArrivalRun]:
        target = Timed("target", context=512, curve=FLAT, time=seconds)
        clock = OwnClock(lambda: seconds[0])
        stage = Stage(target, "plain", copy_of(FLAT), now=clock)
        load = Doubling(first=4.0, seconds=1.0, phases=2)
        run = ArrivalRun(stage.scheduler, load, clock.skip, [[0, 1, 2]], Sampling(max_tokens=8))
        return clock, run

    [alone] = in_turns([made([0.0])])
    shared = [0.0]
    both = in_turns([made(shared), made(shared)])
    for phases in both:
        for mine, theirs in zip(phases, alone, strict=True):
            assert asdict(mine) == pytest.approx(asdict(theirs))


def test_quantiles_are_values_that_occurred() -> None:
    assert quantile([1.0, 2.0, 3.0, 4.0], 0.5) == 3.0
    assert quantile(list(map(float, range(100))), 0.99) == 99.0
    assert quantile([], 0.99) == math.inf

"""One round booked: tokens, nodes, seconds, what was thrown away; and who runs when."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapwood.backends.toy import ToyBackend
from sapwood.bench import measure as measuring
from sapwood.bench.measure import BenchRun, decode, measure, refuse, rotated, seconds_on_refused
from sapwood.core.sampling import Sampling
from sapwood.core.types import SharedPass, StageTimes
from sapwood.engine.cost_model import CostModel, flat
from sapwood.engine.loop import Engine
from sapwood.errors import SapwoodError
from sapwood.recipes import resolve
from tests.helpers.bench_records import outcome

TOY: Any = ToyBackend(vocab=5, context=60)
EVERY_ROW = CostModel([1, 64], [0], [[1.0, 64.0]])  # a pass of n rows takes n seconds


# ------------------------------------------------------------------------------------- one round
def test_a_round_is_booked() -> None:
    run = BenchRun()
    run.count(outcome([0, 1, 0], (0, 1, 2), reach=[0.5, 0.25, 0.125]), [11, 12, 99], flat())
    assert (run.tokens, run.passes, run.nodes, run.accepted) == ([11, 12, 99], 1, 3, 2)
    assert run.expected == pytest.approx(0.875)
    assert (run.draft, run.verify, run.other) == (1.0, 4.0, 0.5)
    assert run.seconds == 5.5
    assert run.length == run.paced == 3
    assert run.sample is not None
    assert run.sample.path == [0, 1, 2]


def test_rounds_add_up() -> None:
    run = BenchRun()
    rounds = [outcome([0], (0, 1), reach=[0.5]), outcome([0, 0], (0,), reach=[0.25, 0.25])]
    for one in rounds:
        run.count(one, one.tokens, flat())
    assert run.tokens == [11, 99, 99]
    assert (run.passes, run.nodes, run.accepted, run.expected) == (2, 3, 1, 1.0)
    assert run.seconds == 11.0
    assert run.reliability.sums[0].sum() == 3  # all three had the root as their parent


def test_a_text_that_was_cut_keeps_fewer_accepted_nodes() -> None:
    run = BenchRun()
    run.count(outcome([0, 1, 2], (0, 1, 2, 3)), [11], flat())  # the text ended with the first
    assert (run.tokens, run.accepted, run.nodes) == ([11], 1, 3)


def test_one_round_without_an_estimate_leaves_no_expectation() -> None:
    run = BenchRun()
    run.count(outcome([0], (0,), reach=[0.5]), [99], flat())
    run.count(outcome([0], (0,)), [99], flat())
    assert math.isnan(run.expected)


def test_plain_rounds_expect_nothing() -> None:
    run = BenchRun()
    run.count(outcome([], (0,)), [99], flat())
    assert (run.expected, run.nodes, run.thrown, run.sample) == (0.0, 0, 0.0, None)


def test_of_a_shared_pass_an_even_share_is_booked() -> None:
    shared = SharedPass(trees=4, rows=20, prefill=0, context=7, seconds=8.0)
    run = BenchRun()
    times = StageTimes(draft=1.0, verify=8.5, other=0.0)
    run.count(outcome([0], (0,), shared=shared, times=times), [99], flat())
    assert run.verify == pytest.approx(8.5 - 6.0)
    assert run.draft == 1.0


# ------------------------------------------------------------------------------ what was thrown
def test_refused_nodes_cost_their_rows() -> None:
    one = outcome([0, 0, 0], (0, 1))  # four rows, two of them refused, four seconds
    assert seconds_on_refused(one, 2, EVERY_ROW) == pytest.approx(4.0 * (1 - 2 / 4))
    assert seconds_on_refused(one, 0, EVERY_ROW) == 0.0
    assert seconds_on_refused(one, 2, flat()) == 0.0


def test_of_a_shared_pass_the_rows_of_all_count() -> None:
    shared = SharedPass(trees=2, rows=8, prefill=2, context=7, seconds=30.0)
    one = outcome([0, 0, 0], (0, 1), shared=shared)
    assert seconds_on_refused(one, 2, EVERY_ROW) == pytest.approx(30.0 * (1 - 8 / 10))


def test_a_curve_that_falls_throws_nothing_away() -> None:
    odd = CostModel([1, 64], [0], [[64.0, 1.0]])
    assert seconds_on_refused(outcome([0, 0], (0,)), 2, odd) == 0.0


# ------------------------------------------------------------------------------------ the lengths
def test_a_peers_own_counts_come_first() -> None:
    assert (BenchRun(tokens=[1, 2]).length, BenchRun(tokens=[1, 2], timed=1).paced) == (2, 1)
    assert (BenchRun(said=9).length, BenchRun(said=9, timed=8).paced) == (9, 8)
    assert BenchRun(tokens=[1], said=0).length == 0


@given(st.integers(1, 6), st.integers(0, 50))
def test_everyone_begins_equally_often(count: int, start: int) -> None:
    names = [f"r{n}" for n in range(count)]
    turns = [rotated(names, place) for place in range(start, start + count)]
    assert sorted(turn[0] for turn in turns) == names
    assert all(sorted(turn) == names for turn in turns)
    assert all((names * 2)[names.index(turn[0]) :][:count] == turn for turn in turns)


# ---------------------------------------------------------------------------------------- decode
def test_reading_the_prompt_is_booked_apart() -> None:
    clock = iter(range(1000))
    engine = Engine(TOY, resolve("plain"), now=lambda: float(next(clock)))
    run = decode(engine, [0, 1, 2], Sampling(max_tokens=4))
    assert run.prefill > 0
    assert run.prefill + run.seconds <= next(clock)


def test_a_prompt_leaves_room_for_what_the_context_holds() -> None:
    engine = Engine(TOY, resolve("plain"))
    run = decode(engine, [0] * 57, Sampling(max_tokens=50))
    assert len(run.tokens) == 3


def test_the_same_seed_says_the_same() -> None:
    engine = Engine(TOY, resolve("plain"))
    said = [
        decode(engine, [1, 2], Sampling(max_tokens=12, temperature=1.0, seed=seed)).tokens
        for seed in (1, 1, 2)
    ]
    assert said[0] == said[1] != said[2]


# --------------------------------------------------------------------------------------- measure
def test_warm_ups_are_short_and_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[list[int], int]] = []

    def fake(engine: Any, prompt: list[int], sampling: Sampling) -> BenchRun:
        asked.append((prompt, sampling.max_tokens))
        return BenchRun(tokens=[1])

    monkeypatch.setattr(measuring, "decode", fake)
    ticks: list[int] = []
    engines: Any = {"a": None, "b": None}
    found = measure(engines, [[7]], Sampling(max_tokens=100), [0], tick=lambda: ticks.append(1))
    assert asked == [([0], 16), ([0], 16), ([7], 100), ([7], 100)]
    assert {name: len(runs) for name, runs in found.items()} == {"a": 1, "b": 1}
    assert len(ticks) == 4
    asked.clear()
    measure(engines, [], Sampling(max_tokens=5), [0])
    assert asked == [([0], 5), ([0], 5)]


def test_one_that_fails_is_dropped_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def fake(engine: Any, prompt: list[int], sampling: Sampling) -> BenchRun:
        if engine == "bad" and prompt == [2]:
            raise SapwoodError("no luck")
        return BenchRun(tokens=list(prompt))

    monkeypatch.setattr(measuring, "decode", fake)
    engines: Any = {"a": "good", "b": "bad", "c": "good"}
    told: list[tuple[str, str]] = []
    ticks: list[int] = []
    found = measure(
        engines,
        [[1], [2], [3]],
        Sampling(),
        [0],
        tick=lambda: ticks.append(1),
        drop=lambda name, error: told.append((name, str(error))),
    )
    assert told == [("b", "no luck")]
    assert list(found) == ["a", "c"]
    assert [run.tokens for run in found["a"]] == [[1], [2], [3]]
    assert len(ticks) == 12  # a progress bar still reaches its end


def test_without_a_place_to_drop_it_a_failure_ends_all(monkeypatch: pytest.MonkeyPatch) -> None:
    def fake(engine: Any, prompt: list[int], sampling: Sampling) -> BenchRun:
        raise SapwoodError("no luck")

    monkeypatch.setattr(measuring, "decode", fake)
    engines: Any = {"a": None}
    with pytest.raises(SapwoodError, match="recipe 'a' failed while decoding: no luck"):
        measure(engines, [[1]], Sampling(), [0])
    with pytest.raises(SapwoodError) as caught:
        refuse("x", SapwoodError("why"))
    assert isinstance(caught.value.__cause__, SapwoodError)


def test_calibration_is_counted_by_the_chance_given_the_parent() -> None:
    run = BenchRun()
    run.count(outcome([0, 1, 0], (0, 1), reach=[0.8, 0.4, 0.1], bonus=12), [11, 12], flat())
    nodes, chances, stood = run.reliability.sums
    assert nodes.tolist() == [0, 1, 0, 0, 0, 1, 0, 0, 1, 0]
    assert np.flatnonzero(stood).tolist() == [5, 8]  # node 2 was the target's own next token
    assert chances.sum() == pytest.approx(0.8 + 0.5 + 0.1)

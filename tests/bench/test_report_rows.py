"""Rows from hand-made runs: sums, shares, equal outputs, departures, and rows without numbers."""

import math
from typing import Any

import pytest

from sapwood.backends.toy import ToyBackend
from sapwood.bench.groups import RunGroup
from sapwood.bench.measure import BenchRun
from sapwood.bench.recipe_set import RecipeSet
from sapwood.bench.report import (
    ReportOptions,
    absent,
    by_category,
    calibration,
    equal,
    intervals,
    named,
    promised,
    report,
    row,
    taken,
)
from sapwood.bench.rows import ALL, ReportRow
from sapwood.bench.suites import BenchPrompt
from sapwood.bench.sweep import SweepPoint
from sapwood.bench.ties import Divergence
from sapwood.common.calibration import CalibrationCurve
from sapwood.core.sampling import Sampling
from sapwood.engine.loop import Engine
from sapwood.recipe import parse
from sapwood.recipes import resolve
from tests.helpers.bench_records import run

TOY: Any = ToyBackend(vocab=5, context=80)
LOSSY = "recycling + best + typical + fixed(nodes=8, depth=4, width=4)"
LAW = "recycling(draws=iid) + chain + speculative + fixed(nodes=2, depth=2, width=1)"
PARTED = Divergence("p", 3, 1, 2, 0.5, 0.25, 0.25, tie=False)


def prompts(*categories: str) -> list[BenchPrompt]:
    return [BenchPrompt(f"p{at}", word, word, "x") for at, word in enumerate(categories)]


# ------------------------------------------------------------------------------------------ a row
def test_a_row_sums_over_its_runs() -> None:
    runs = [
        run(4, 2.0, passes=2, nodes=6, accepted=2, draft=1.0, other=1.0, prefill=0.5, expected=4.0),
        run(
            6, 3.0, passes=3, nodes=4, accepted=3, draft=0.5, other=0.5, prefill=0.25, expected=6.0
        ),
    ]
    made = row("c", resolve("pld"), RunGroup(runs, runs), None, ReportOptions())
    assert (made.tokens, made.passes, made.seconds, made.turns) == (10, 5, 8.0, 2)
    assert made.tokens_per_second == pytest.approx(10 / 8)
    assert made.tokens_per_pass == 2.0
    assert made.nodes_per_pass == 2.0
    assert made.waste == pytest.approx(0.5)
    assert made.calibration == pytest.approx(0.5)
    assert made.prefill_seconds == 0.75
    shares = (made.draft_share, made.verify_share, made.other_share)
    assert shares == pytest.approx((1.5 / 8, 5 / 8, 1.5 / 8))
    assert made.guarantee == "text"
    assert parse(made.spelling) == resolve("pld")
    assert (made.identical, made.divergences) == (None, [])


def test_a_recipe_that_drafts_nothing_wastes_nothing() -> None:
    group = RunGroup([run(4, 2.0)], [run(4, 2.0)])
    made = row("c", resolve("plain"), group, [None], ReportOptions())
    assert (made.waste, made.nodes_per_pass, made.calibration) == (0.0, 0.0, None)
    assert (made.reliability, made.ece) == (None, None)
    assert made.identical == 1


def test_calibration_curves_of_all_runs_are_one() -> None:
    runs = [run(2, 1.0), run(2, 1.0)]
    for at, one in enumerate(runs):
        one.reliability = CalibrationCurve()
        one.reliability.sums[:, 5] = [10, 5.5, 5 + at]
    made = row("c", resolve("pld"), RunGroup(runs, runs), None, ReportOptions())
    assert made.reliability is not None
    [one_bin] = made.reliability
    assert (one_bin.low, one_bin.high, one_bin.nodes) == (0.5, 0.6, 20)
    assert one_bin.predicted == pytest.approx(0.55)
    assert one_bin.accepted == pytest.approx(11 / 20)
    assert made.ece == pytest.approx(0.0)


def test_wasted_seconds_need_a_measured_curve() -> None:
    group = RunGroup([run(2, 1.0, thrown=0.25), run(2, 1.0, thrown=0.5)], [run(2, 1.0)] * 2)
    unknown = row("c", resolve("pld"), group, None, ReportOptions())
    known = row("c", resolve("pld"), group, None, ReportOptions(priced=True))
    assert unknown.wasted_seconds is None
    assert known.wasted_seconds == 0.75


def test_departures_are_those_of_lossy_recipes_alone() -> None:
    group = RunGroup([run(8, 1.0, strayed=2)], [run(8, 1.0)])
    assert row("c", parse(LOSSY), group, None, ReportOptions()).departure == 0.25
    assert row("c", resolve("pld"), group, None, ReportOptions()).departure is None


# ------------------------------------------------------------------------------------- the pieces
@pytest.mark.parametrize(
    ("recipe", "temperature", "expected"),
    [("pld", 0.0, True), ("pld", 1.0, True), (LAW, 0.0, True), (LAW, 1.0, False)],
)
def test_equal_text_is_promised_greedily_and_by_matching(
    recipe: str, temperature: float, expected: bool
) -> None:
    assert promised(resolve(recipe), Sampling(temperature=temperature)) is expected


def test_memory_is_the_peak_and_energy_the_sum() -> None:
    runs = [BenchRun(memory=5, joules=1.5), BenchRun(memory=9, joules=2.0)]
    assert taken(runs) == {"peak_memory": 9, "joules": 3.5}
    assert taken([*runs, BenchRun()]) == {"peak_memory": 9, "joules": None}
    assert taken([BenchRun()]) == {"peak_memory": None, "joules": None}


def test_a_conversation_is_equal_where_all_of_its_turns_are() -> None:
    runs = [run(1, 1.0)] * 4
    parted: list[Divergence | None] = [None, PARTED, None, None]
    assert equal(RunGroup(runs, runs), parted) == 3
    assert equal(RunGroup(runs, runs, ["a", "a", "b", "b"]), parted) == 1
    assert equal(RunGroup(runs, runs, ["a", "b", "a", "c"]), parted) == 2
    assert equal(RunGroup(runs, runs, ["a"] * 4), [None] * 4) == 1


@pytest.mark.parametrize(
    ("accepted", "expected", "found"),
    [(3, 6.0, 0.5), (6, 3.0, 2.0), (3, math.nan, None), (0, 0.0, None), (0, 2.0, 0.0)],
)
def test_calibration_is_accepted_over_expected(
    accepted: int, expected: float, found: float | None
) -> None:
    assert calibration(accepted, expected) == found


def test_intervals_are_none_where_no_seconds_were_told() -> None:
    silent = RunGroup([BenchRun(said=3, timed=0)], [run(3, 1.0)])
    assert set(intervals(silent).values()) == {None}
    told = intervals(RunGroup([run(4, 1.0)], [run(4, 2.0)]))
    assert told == {
        "speedup": 2.0,
        "speedup_low": 2.0,
        "speedup_high": 2.0,
        "tokens_per_second_low": 4.0,
        "tokens_per_second_high": 4.0,
    }


def test_a_row_carries_its_name_and_setting() -> None:
    view = ReportOptions(SweepPoint(0.7, 64, 4), energy_note="no meter")
    made = named("mine", ReportRow("", "c", 2), view)
    assert (made.recipe, made.temperature, made.context, made.batch) == ("mine", 0.7, 64, 4)
    assert made.energy_note == "no meter"


def test_a_recipe_that_could_not_run_says_what_it_would_promise() -> None:
    made = absent("pld", "no memory", ReportOptions(SweepPoint(batch=2)))
    assert (made.recipe, made.category, made.prompts, made.skipped) == ("pld", ALL, 0, "no memory")
    assert (made.guarantee, made.batch, made.tokens, made.divergences) == ("text", 2, None, [])
    assert parse(made.spelling) == resolve("pld")


# ------------------------------------------------------------------------------------- categories
def test_categories_come_in_the_order_of_the_prompts_and_all_last() -> None:
    seen: list[tuple[str, list[int], int]] = []

    def made(category: str, group: RunGroup, places: list[int]) -> ReportRow:
        seen.append((category, places, group.prompts))
        return ReportRow("", category, group.prompts)

    runs = {name: [run(1, 1.0)] * 4 for name in ("plain", "pld")}
    rows = by_category("pld", prompts("b", "a", "b", "c"), runs, ReportOptions(), made)
    assert seen == [("b", [0, 2], 2), ("a", [1], 1), ("c", [3], 1), (ALL, [0, 1, 2, 3], 4)]
    assert [one.category for one in rows] == ["b", "a", "c", ALL]
    assert {one.recipe for one in rows} == {"pld"}


def test_turns_of_one_conversation_stay_together_in_a_category() -> None:
    groups: list[RunGroup] = []

    def made(category: str, group: RunGroup, places: list[int]) -> ReportRow:
        groups.append(group)
        return ReportRow("", category, group.prompts)

    runs = {name: [run(1, 1.0)] * 3 for name in ("plain", "pld")}
    view = ReportOptions(talks=["x", "x", "y"])
    by_category("pld", prompts("a", "a", "b"), runs, view, made)
    assert [group.talks for group in groups] == [["x", "x"], ["y"], ["x", "x", "y"]]
    assert [group.prompts for group in groups] == [1, 1, 2]


# --------------------------------------------------------------------------------------- together
def test_a_lossy_recipe_is_read_by_the_target_again() -> None:
    lineup = RecipeSet({name: Engine(TOY, resolve(name)) for name in ("plain", LOSSY)})
    said = [0, 1, 2, 3]
    runs = {"plain": [run(said, 1.0)], LOSSY: [run(said, 1.0)]}
    made = report(TOY, lineup, prompts("c"), [[0, 1]], runs, Sampling(temperature=1.0, seed=3))
    lossy = next(one for one in made if one.recipe == LOSSY and one.category == ALL)
    assert lossy.departure is not None
    assert lossy.departure == runs[LOSSY][0].strayed / 4
    assert runs["plain"][0].strayed == 0  # nobody doubts it
    assert lossy.identical is None


def test_a_row_for_each_recipe_and_category_and_one_for_each_that_is_missing() -> None:
    lineup = RecipeSet(
        {name: Engine(TOY, resolve(name)) for name in ("plain", "pld")}, {"suffix": "why"}
    )
    runs = {name: [run(3, 1.0), run(3, 2.0)] for name in ("plain", "pld")}
    made = report(TOY, lineup, prompts("a", "b"), [[0]] * 2, runs, Sampling())
    assert [(one.recipe, one.category) for one in made] == [
        ("plain", "a"),
        ("plain", "b"),
        ("plain", ALL),
        ("pld", "a"),
        ("pld", "b"),
        ("pld", ALL),
        ("suffix", ALL),
    ]
    assert [one.regret for one in made] == [0.0] * 6 + [None]
    assert made[-1].skipped == "why"

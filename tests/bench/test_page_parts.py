"""Parts of the report's page from hand-made rows: axes, leaderboard, charts, cards, tabs, notes."""

import re
import xml.etree.ElementTree as ET
from dataclasses import asdict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapwood.bench.page import axes, board, charts
from sapwood.bench.page.axes import TIMES, AxisScale, across, bounds, round_step, short, upwards
from sapwood.bench.page.page import (
    COLOURS,
    colours,
    facts,
    head,
    label,
    notes,
    origin,
    overall,
    page,
    settings,
    swept,
    trees,
)
from sapwood.bench.rows import ReportRow
from tests.helpers.bench_records import record, row

numbers = st.floats(-1e4, 1e4).filter(lambda value: value == 0 or abs(value) > 1e-3)


def plain_rows(*rows: ReportRow) -> list[dict[str, Any]]:
    return [asdict(one) for one in rows]


def drawn(svg: str) -> ET.Element:
    """A chart as elements."""
    return ET.fromstring(svg)


def kinds(svg: str, tag: str) -> list[ET.Element]:
    return list(drawn(svg).iter(tag))


PEER = row("hf", peer=True, weights="float32", agreement=2, agreement_share=0.5, identical=None)
PEER_ROW = {**asdict(PEER), "tokens_per_pass": None, "draft_share": None}


# ------------------------------------------------------------------------------------------- axes
@given(st.lists(numbers, min_size=2, max_size=6), st.booleans())
def test_every_value_lies_inside_its_axis(values: list[float], zero: bool) -> None:
    low, high = bounds(values, zero=zero)
    assert low <= min(values)
    assert max(values) < high
    if zero and min(values) >= 0:
        assert low == 0
    x = across(values, zero=zero)
    places = [x.at(value) for value in sorted(values)]
    assert places == sorted(places)
    assert axes.LEFT <= places[0] <= places[-1] <= axes.WIDE - axes.RIGHT
    y = upwards(values, zero=zero)
    assert [y.at(value) for value in sorted(values)] == sorted(map(y.at, values), reverse=True)


@given(st.floats(1e-6, 1e6))
def test_a_step_is_one_two_or_five_of_a_power_of_ten(rough: float) -> None:
    step = round_step(rough)
    assert rough - 1e-9 <= step <= rough * 10
    digits = f"{step:.6e}".split("e")[0].rstrip("0").rstrip(".")
    assert digits in ("1", "2", "5")


@given(st.floats(0, 100), st.floats(0.1, 100))
def test_ticks_are_round_and_inside(low: float, wide: float) -> None:
    scale = AxisScale(low, low + wide, 0, 100)
    ticks = scale.ticks()
    assert 1 <= len(ticks) <= 2 * axes.TICKS
    assert all(low - 1e-6 <= tick <= low + wide + 1e-6 for tick in ticks)


def test_doublings_take_the_same_room() -> None:
    scale = AxisScale(2, 32, 0, 80, doubling=True)
    assert [scale.at(value) for value in (2, 4, 8, 16, 32)] == [0, 20, 40, 60, 80]
    assert bounds([8.0], zero=False, doubling=True) == (8.0, 16.0)
    assert bounds([], zero=True) == (0.0, 1.06)
    assert round_step(0.0) == 1.0


@pytest.mark.parametrize(
    ("value", "shown"), [(0, "0"), (0.25, "0.25"), (1500, "1500"), (0.0004, "4e-04")]
)
def test_numbers_on_an_axis_are_short(value: float, shown: str) -> None:
    assert short(value) == shown


# ----------------------------------------------------------------------------------------- colours
def test_every_recipe_that_ran_has_a_colour_and_plain_decoding_the_first() -> None:
    rows = [row("pld"), row("plain"), row("auto"), ReportRow("off", "all", 0, skipped="why")]
    assert colours(plain_rows(*rows)) == {"plain": 0, "pld": 1, "auto": 2}
    many = colours(plain_rows(*(row(f"r{n}") for n in range(30))))
    assert set(many.values()) == set(range(COLOURS))
    assert many["r0"] == many[f"r{COLOURS - 1}"] == 1


# ------------------------------------------------------------------------------------- leaderboard
def test_the_board_is_ordered_by_speedup_and_ends_with_those_that_did_not_run() -> None:
    rows = plain_rows(
        row("slow", speedup=0.5),
        ReportRow("off", "all", 0, skipped="no <memory>"),
        row("fast", speedup=3.0),
        row("none", speedup=None, speedup_low=None, speedup_high=None),
    )
    found = board.board(rows, {"slow": 1, "fast": 2, "none": 3})
    assert re.findall(r'<tr data-who="(\w+)"', found) == ["fast", "slow", "none"]
    assert found.index('class="off"') > found.index('data-who="none"')
    assert "no &lt;memory&gt;" in found


def test_columns_without_numbers_are_left_out() -> None:
    found = board.board(plain_rows(row("pld")), {"pld": 1})
    names = re.findall(r"<button[^>]*>([^<]+)</button>", found)
    assert names[0] == "recipe"
    assert {"speedup", "same text", "tokens / pass"} <= set(names)
    assert not {"J", "MiB", "oracle", "wasted s"} & set(names)
    more = board.board(plain_rows(row("pld", joules=5.0, peak_memory=3 << 20)), {"pld": 1})
    assert {"J", "MiB"} <= set(re.findall(r"<button[^>]*>([^<]+)</button>", more))


@pytest.mark.parametrize(
    ("more", "cell"),
    [
        ({"identical": 3}, (0.75, "3/4")),
        ({"departure": 0.125}, (0.875, "departs 12.5%")),
        ({"identical": None}, (None, "")),
        ({"peer": True, "agreement": 1}, (0.25, "1/4")),
    ],
)
def test_equal_text_is_sorted_by_its_share(more: dict[str, Any], cell: tuple[Any, str]) -> None:
    assert board.same_text(asdict(row("pld", **more))) == cell


def test_cells_are_sorted_by_numbers_and_shown_in_words() -> None:
    one = asdict(row("pld", regret=-0.05, peak_memory=5 << 20))
    assert board.regret_of("regret")(one) == (-0.05, "-5%")
    assert board.memory(one) == (5 << 20, "5")
    assert board.interval(one) == (1.25, "1.25 to 1.75")
    assert board.number("speedup", ".2f", TIMES)(one) == (1.5, f"1.50{TIMES}")
    assert board.number("joules", ".0f")(one) == (None, "")
    assert board.keeps(asdict(PEER)) == ("peer", "peer")


def test_an_interval_is_drawn_to_scale() -> None:
    svg = drawn(board.forest(asdict(row("pld")), 2.0, 3))
    one, thick = svg.iter("line")
    unit = (board.FOREST - 8) / 2
    assert float(one.get("x1", "")) == pytest.approx(4 + unit, abs=0.06)
    assert float(thick.get("x1", "")) == pytest.approx(4 + 1.25 * unit, abs=0.06)
    assert float(thick.get("x2", "")) == pytest.approx(4 + 1.75 * unit, abs=0.06)
    [dot] = svg.iter("circle")
    assert float(dot.get("cx", "")) == pytest.approx(4 + 1.5 * unit, abs=0.06)


# ------------------------------------------------------------------------------------------ charts
SLOTS = {"plain": 0, "pld": 1, "auto": 2, "hf": 3}


def test_a_point_for_each_recipe_and_category_but_plain_decodings() -> None:
    rows = plain_rows(row("plain", "a"), row("pld", "a"), row("auto", "a"), row("pld", "b"))
    rows.append(asdict(row("auto", "b", speedup=None)))
    svg = charts.by_category(rows, SLOTS)
    marks = [one.get("data-who") for one in kinds(svg, "g")]
    assert marks == ["pld", "auto", "pld"]
    titles = [one.text for one in kinds(svg, "title")]
    assert titles[0] == f"pld, a: 1.50{TIMES} (1.25 to 1.75)"
    assert "in 2 categories" in drawn(svg).get("aria-label", "")


def test_without_an_interval_a_point_stands_alone() -> None:
    rows = plain_rows(row("pld", "a", speedup_low=None, speedup_high=None))
    [whisker] = [
        line
        for line in kinds(charts.by_category(rows, SLOTS), "line")
        if "thick" in line.get("class", "")
    ]
    assert whisker.get("x1") == whisker.get("x2")


def test_larger_trees_stand_further_right_and_better_ones_higher() -> None:
    rows = plain_rows(
        row("pld", nodes_per_pass=2.0, tokens_per_pass=1.5),
        row("auto", nodes_per_pass=9.0, tokens_per_pass=2.5),
        row("plain", nodes_per_pass=0.0, tokens_per_pass=1.0, tokens_per_pass_low=None),
    )
    dots = kinds(charts.per_pass([*rows, PEER_ROW], SLOTS), "circle")
    assert len(dots) == 3
    x = [float(dot.get("cx", "")) for dot in dots]
    y = [float(dot.get("cy", "")) for dot in dots]
    assert x[2] < x[0] < x[1]
    assert y[2] > y[0] > y[1]


def test_the_cost_curve_ends_a_little_beyond_the_points() -> None:
    curve = {
        "rows": [1, 2, 4, 8, 16, 32, 64, 128],
        "contexts": [0, 512],
        "seconds": [[0.01 * n for n in range(1, 9)], [0.02 * n for n in range(1, 9)]],
    }
    rows = plain_rows(row("pld", nodes_per_pass=3.0, seconds=2.0, verify_share=0.5, passes=20))
    svg = charts.cost(curve, rows, SLOTS)
    lines = kinds(svg, "polyline")
    assert [len(line.get("points", "").split()) for line in lines] == [6, 6]  # up to 32 rows
    assert charts.working_point(rows[0]) == (4.0, 50.0)
    [title] = [one.text for one in kinds(svg, "title")]
    assert title == "pld: 4.0 rows and 50.0 ms per pass"
    wide = plain_rows(row("pld", nodes_per_pass=63.0))
    assert len(kinds(charts.cost(curve, wide, SLOTS), "polyline")[0].get("points", "").split()) == 8


def test_calibration_draws_larger_points_for_more_nodes() -> None:
    bins = [
        {"low": 0.0, "high": 0.1, "nodes": 25, "predicted": 0.05, "accepted": 0.1},
        {"low": 0.9, "high": 1.0, "nodes": 100, "predicted": 0.95, "accepted": 0.9},
    ]
    told = {**asdict(row("pld", ece=0.05)), "reliability": bins}
    svg = charts.calibration([told, asdict(row("auto"))], SLOTS)
    sizes = [float(dot.get("r", "")) for dot in kinds(svg, "circle")]
    assert sizes == pytest.approx([2 + 5 * 0.5, 7.0])
    assert [one.text for one in kinds(svg, "title")] == ["pld: mean gap 0.050 over 125 nodes"]


def test_the_time_of_a_token_is_parted_by_stage() -> None:
    rows = plain_rows(row("pld", seconds=2.0, tokens=40), row("auto", seconds=1.0, tokens=40))
    svg = charts.time_split([*rows, PEER_ROW])
    bars = kinds(svg, "rect")
    assert [bar.get("class") for bar in bars] == ["draft", "verify", "other"] * 2
    wide = [float(bar.get("width", "")) for bar in bars]
    assert wide[1] == pytest.approx(2 * wide[0], abs=0.3)
    assert sum(wide[:3]) == pytest.approx(2 * sum(wide[3:]), abs=0.5)
    assert float(bars[1].get("x", "")) == pytest.approx(
        float(bars[0].get("x", "")) + wide[0], abs=0.15
    )
    first = kinds(svg, "title")[0].text or ""
    assert first.startswith("pld: 50.00 ms per token; drafting 25%, passes and verification 50%")


def test_a_sweep_is_drawn_in_the_order_of_its_values() -> None:
    rows = plain_rows(
        row("pld", batch=8, speedup=1.0), row("pld", batch=1, speedup=2.0), row("pld", batch=2)
    )
    svg = charts.sweep(rows, "batch", SLOTS)
    [line] = kinds(svg, "polyline")
    x = [float(pair.split(",")[0]) for pair in line.get("points", "").split()]
    assert x == sorted(x)
    assert x[1] - x[0] == pytest.approx((x[2] - x[0]) / 3, abs=0.2)  # doublings
    [title] = [one.text for one in kinds(svg, "title")]
    assert title == f"pld: 2.00{TIMES} at 1, 1.50{TIMES} at 2, 1.00{TIMES} at 8"


# -------------------------------------------------------------------------------------------- page
def test_the_numbers_to_remember() -> None:
    rows = plain_rows(
        row("plain", speedup=1.0, tokens_per_second=10.0),
        row("loose", speedup=9.0, departure=0.5, identical=None),
        row("pld", speedup=2.0, tokens_per_second=20.0, identical=3),
        PEER,
    )
    found = re.findall(r"<b>([^<]+)</b>", facts(rows))
    assert found == [f"2.00{TIMES}", "20.0", "10.0", "7/8"]
    assert "fastest lossless recipe: pld (1.25 to 1.75)" in facts(rows)
    alone = re.findall(r"<b>([^<]+)</b>", facts(plain_rows(row("plain", speedup=1.0))))
    assert alone == [f"1.00{TIMES}", "20.0", "4/4"]


def test_what_was_measured_where() -> None:
    made = record(row("plain"))
    assert "float32 on cpu · 4 prompts of questions.jsonl · up to 16 tokens each" in head(made)
    assert "some cpu, 4 of 8 cores" in head(made)
    made["suite"]["turns"] = 9
    made["machine"]["gpu"] = "Some GPU"
    assert "4 prompts (9 turns) of" in head(made)
    assert "Some GPU" in head(made)


def test_settings_are_named_by_what_differs() -> None:
    places = [(0.0, None, 1), (1.0, None, 1), (0.0, 64, 1)]
    assert [label(place, places) for place in places] == [
        "temperature 0, context as it is",
        "temperature 1, context as it is",
        "temperature 0, context 64",
    ]


def test_one_setting_has_no_tabs_and_several_hide_all_but_the_first() -> None:
    one = settings(record(), plain_rows(row("plain"), row("pld")), SLOTS)
    assert 'role="tab"' not in one
    rows = plain_rows(row("plain"), row("pld"), row("plain", batch=4), row("pld", batch=4))
    both = settings(record(), rows, SLOTS)
    assert both.count('role="tab"') == 2
    assert re.findall(r'<div id="(setting\d)" role="tabpanel"( hidden)?>', both) == [
        ("setting0", ""),
        ("setting1", " hidden"),
    ]


def test_a_chart_for_each_setting_of_several_values() -> None:
    rows = plain_rows(row("plain"), row("plain", temperature=1.0), row("plain", batch=4))
    found = swept(rows, SLOTS)
    assert re.findall(r"Speedup by (\w+)<", found) == ["temperature", "batch"]
    assert swept(plain_rows(row("plain")), SLOTS) == ""
    assert swept([], SLOTS) == ""


def test_rows_over_all_prompts_are_those_of_the_first_setting() -> None:
    rows = plain_rows(row("plain", "a"), row("plain"), row("plain", temperature=1.0))
    assert overall(rows) == rows[1:2]


def test_notes_name_weights_and_missing_energy() -> None:
    found = notes(plain_rows(row("plain", energy_note="no <meter>"), PEER))
    assert "<b>hf</b> runs float32; 50% of its text agrees with plain decoding" in found
    assert "No energy: no &lt;meter&gt;" in found
    assert notes(plain_rows(row("plain"))) == ""


def test_samples_are_shown_with_what_became_of_them() -> None:
    sample = {
        "recipe": "a<b",
        "prompt": "p:1",
        "nodes": 5,
        "accepted": 2,
        "svg": "<svg x='1'></svg>",
    }
    found = trees([sample, sample])
    assert found.count("a&lt;b on p:1: 5 nodes checked, 2 accepted") == 2
    assert '<svg class="tree0" x=' in found
    assert '<svg class="tree1" x=' in found
    assert trees([]) == ""


def test_the_origin_holds_the_command_and_the_record() -> None:
    made = record(row("</script>"), command="sapwood bench --suite 'a<b'")
    found = origin(made)
    assert "sapwood bench --suite &#x27;a&lt;b&#x27;" in found
    assert "<dt>prompts</dt><dd>questions.jsonl, digest d1ge57</dd>" in found
    assert "<dt>model</dt><dd>tiny f00d</dd>" in found
    assert "<dt>gpu</dt>" not in found
    assert found.count("</script>") == 1  # that of the record itself


def test_a_page_without_speedups_is_still_a_page() -> None:
    made = record(row("plain", speedup=None, speedup_low=None, speedup_high=None))
    text = page(made)
    assert "<h1><em>tiny</em>, side by side</h1>" in text
    assert "fastest that keeps" not in text

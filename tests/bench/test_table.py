"""The report on a terminal, from hand-made rows."""

import pytest
from rich.console import Console
from rich.table import Table

from sapwood.bench import table
from sapwood.bench.rows import ReportRow
from sapwood.bench.sweep import SweepPoint
from sapwood.bench.table import (
    BEST,
    by_category,
    categories,
    cell,
    cells,
    fastest,
    notes,
    overall,
    settings,
    show,
    shown,
)
from sapwood.bench.ties import Divergence
from tests.helpers.bench_records import row

TIE = Divergence("p", 0, 1, 2, 0.0, 0.0, 0.0, tie=True)
FAULT = Divergence("p", 0, 1, 2, 1.0, 0.0, 1.0, tie=False)
PEER = row(
    "hf", peer=True, weights="float32; hf 5", agreement=3, agreement_share=0.625, identical=None
)


def printed(made: Table) -> list[list[str]]:
    """The words of each line."""
    console = Console(width=200, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(made)
    console.file.close()
    return [line.split() for line in console.export_text().splitlines() if line.strip()]


# ----------------------------------------------------------------------------------------- cells
def test_a_line_shows_its_numbers() -> None:
    assert cells(row("pld", waste=0.256, identical=3)) == [
        "20.0",
        "1.50x",
        "1.25-1.75",
        "2.00x",
        "3.0",
        "26%",
        "25/50/25",
        "3/4",
    ]


def test_what_is_not_known_is_blank() -> None:
    empty = row(
        "pld", speedup=None, speedup_low=None, speedup_high=None, identical=None, waste=None
    )
    found = cells(empty)
    assert found[1:3] == ["", ""]
    assert (found[5], found[7]) == ("", "")
    assert shown(None, ".1f", "x") == ""
    assert shown(0.0, ".1f", "x") == "0.0x"


def test_a_peer_shows_its_pace_and_its_agreement_alone() -> None:
    assert cells(PEER) == ["20.0", "1.50x", "1.25-1.75", "", "", "", "", "3/4"]


def test_speedup_and_ceiling_stand_in_one_cell() -> None:
    assert cell(row("pld"), "pld").plain == "1.50x (2.00)"
    assert cell(row("pld"), "pld").style == BEST
    assert cell(row("pld"), "auto").style == ""
    assert cell(row("hf", tokens_per_pass=None), None).plain == "1.50x"


# --------------------------------------------------------------------------------------- fastest
def test_the_fastest_is_ours_and_not_plain_decoding() -> None:
    rows = [row("plain", speedup=9.0), row("pld", speedup=1.2), row("auto", speedup=1.4), PEER]
    assert fastest(rows, "all") == "auto"
    assert fastest([rows[0], PEER], "all") is None
    assert fastest([row("pld", speedup=None)], "all") is None
    assert fastest(rows, "code") is None


def test_the_fastest_is_that_of_its_category() -> None:
    rows = [row("pld", "a", speedup=2.0), row("auto", "a", speedup=1.0)]
    rows += [row("pld", "b", speedup=1.0), row("auto", "b", speedup=3.0)]
    assert (fastest(rows, "a"), fastest(rows, "b")) == ("pld", "auto")


# ---------------------------------------------------------------------------------------- tables
def test_one_line_per_recipe_over_all_prompts() -> None:
    rows = [row("plain", speedup=1.0), row("pld", "code"), row("pld"), PEER]
    rows.append(ReportRow("suffix", "all", 0, skipped="no memory"))
    lines = printed(overall(rows, "some title"))
    assert lines[0] == ["some", "title"]
    assert [line[:2] for line in lines if line[0] in ("plain", "pld", "hf", "suffix")] == [
        ["plain", "text"],
        ["pld", "text"],
        ["hf", "peer"],
    ]
    made = overall(rows, "t")
    assert [str(style) for style in (line.style for line in made.rows)] == ["None", BEST, "None"]


def test_departures_have_a_column_where_a_recipe_is_lossy() -> None:
    rows = [row("pld"), row("loose", departure=0.125)]
    assert [column.header for column in overall(rows, "t").columns][-1] == "departs"
    assert printed(overall(rows, "t"))[-1][-1] == "12.5%"
    assert "departs" not in [column.header for column in overall(rows[:1], "t").columns]


def test_a_name_of_several_lines_is_not_read_as_markup() -> None:
    lines = printed(overall([row("ngram(n=[2, 3])")], "t"))
    assert any("[2," in word for line in lines for word in line)


def test_speedups_by_category() -> None:
    rows = [row("plain", "a", speedup=1.0), row("plain", "b", speedup=1.0), row("plain")]
    rows += [row("pld", "a", speedup=2.0), row("pld", "b", speedup=0.5), row("pld")]
    rows.append(ReportRow("suffix", "all", 0, skipped="no memory"))
    lines = printed(by_category(rows))
    assert lines[1] == ["recipe", "a", "b"]
    assert lines[2:] == [
        ["plain", "1.00x", "(2.00)", "1.00x", "(2.00)"],
        ["pld", "2.00x", "(2.00)", "0.50x", "(2.00)"],
    ]
    assert categories(rows) == ["a", "b", "all"]


def test_rows_are_parted_by_setting() -> None:
    rows = [row("plain"), row("plain", temperature=1.0), row("pld"), row("pld", batch=2)]
    found = settings(rows)
    assert list(found) == [SweepPoint(), SweepPoint(1.0), SweepPoint(batch=2)]
    assert [one.recipe for one in found[SweepPoint()]] == ["plain", "pld"]


# ----------------------------------------------------------------------------------------- notes
def test_notes_say_what_went_wrong() -> None:
    rows = [
        ReportRow("suffix", "all", 0, skipped="no memory"),
        PEER,
        row("loose", departure=0.125),
        row("auto", divergences=[TIE, TIE, FAULT]),
        row("auto", "code", divergences=[FAULT]),
        row("pld"),
    ]
    assert notes(rows) == [
        "suffix skipped: no memory",
        "hf runs float32; hf 5; 62% of its text agrees with plain decoding",
        "loose is lossy: 12.5% of its tokens differ from plain decoding's after the same text",
        "auto: 3 of 4 outputs differ from plain decoding's, 2 by a tie of the target's logits, 1 not",
    ]


def test_a_lossy_recipe_is_not_blamed_for_its_divergences() -> None:
    [said] = notes([row("loose", departure=0.5, divergences=[FAULT])])
    assert "is lossy" in said


# ------------------------------------------------------------------------------------ everything
@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "WIDE", 400)


def test_a_report_of_one_setting_has_its_title_alone(capsys: pytest.CaptureFixture[str]) -> None:
    show([row("plain", speedup=1.0), row("pld")], "tiny, 4 prompts")
    out = capsys.readouterr().out
    assert out.startswith("tiny, 4 prompts")
    assert "by category" not in out
    assert "speedup: plain decoding's seconds per token" in out


def test_each_setting_has_its_tables_and_a_note_is_said_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = []
    for heat in (0.0, 1.0):
        for category in ("a", "b", "all"):
            rows += [
                row("plain", category, temperature=heat),
                row("pld", category, temperature=heat),
            ]
        rows.append(ReportRow("suffix", "all", 0, skipped="no memory", temperature=heat))
    show(rows, "tiny")
    out = capsys.readouterr().out
    assert "tiny; greedy, one at a time" in out
    assert "tiny; temperature 1" in out
    assert out.count("speedup (ceiling) by category") == 2
    assert out.count("suffix skipped: no memory") == 1

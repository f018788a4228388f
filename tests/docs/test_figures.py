"""Figures in the documents come from records, and every record says how it was made."""

import json
import re
from pathlib import Path

import pytest
from tools import figures, record_values

RECORDS = sorted((figures.ROOT / figures.RESULTS).glob("*.json"))
# marks, code, links and versions may hold numbers that were not measured
NOT_MEASURED = re.compile(
    r"<!-- (fig|table):.*?<!-- /\1 -->|```.*?```|`[^`\n]*`|\]\([^)\s]*\)|Python 3\.\d+", re.DOTALL
)
# a command may set a variable of the environment
COMMAND = re.compile(r"([A-Z_]+=\w+ )?(sapwood bench|python benchmarks/\w+\.py) ")


@pytest.mark.parametrize(
    "page", list(figures.pages()), ids=lambda page: str(page.relative_to(figures.ROOT))
)
def test_pages_quote_what_the_records_say(page: Path) -> None:
    text = page.read_text()
    assert list(figures.faults(text)) == []
    assert figures.filled(text) == text, "run make tables"


@pytest.mark.parametrize("name", ["README.md", "ARCHITECTURE.md", "CHANGELOG.md", "docs/index.md"])
def test_no_measured_number_is_written_by_hand(name: str) -> None:
    rest = NOT_MEASURED.sub("", (figures.ROOT / name).read_text())
    assert re.findall(r"\d+\.\d\d\b|\d+ ?%|\d+ times", rest) == []


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.name)
def test_records_say_how_they_were_made(path: Path) -> None:
    record = json.loads(path.read_text())
    assert record.get("machine") or record.get("device")
    for made in record.get("runs", [record]):
        assert COMMAND.match(made["command"])
        assert record_values.state(made)


def test_every_figure_and_table_can_be_written() -> None:
    for name in figures.FIGURES:
        assert re.fullmatch(r"[\d,.]+%?", figures.written(name)), name
    for name in figures.TABLES:
        made = figures.table(name)
        assert made.count("\n") > 3 or (name, made) == ("heads", figures.NO_RECORD)
    assert figures.written("equal.auto.qa.tokens_per_pass") != figures.written(
        "equal.auto.tokens_per_pass"
    )


@pytest.mark.parametrize("name", ["cpu.nothing", "equal.auto.nothing", "nowhere.auto.speedup"])
def test_unknown_names_are_refused(name: str) -> None:
    with pytest.raises(SystemExit, match="no figure is called"):
        figures.filled(f"<!-- fig:{name} -->1<!-- /fig -->")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with one page and a record of runs of two states of the code."""
    results = tmp_path / figures.RESULTS
    results.mkdir(parents=True)
    runs = [run("old", 9.0), run("new", 1.4), run("new", 1.6), run("new", 1.45)]
    (results / figures.CPU).write_text(json.dumps({"runs": runs}))
    monkeypatch.setattr(figures, "ROOT", tmp_path)
    return tmp_path


def run(commit: str, gain: float) -> record_values.Record:
    rows = [{"run": "sapwood:plain", "tokens_per_second": 100.0, "against_first": 1.0}]
    rows.append({"run": "sapwood:auto", "tokens_per_second": 100 * gain, "against_first": gain})
    return {"commit": commit, "rows": rows}


def test_a_page_is_filled_from_the_median_of_the_newest_runs(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = project / "README.md"
    page.write_text("a <!-- fig:cpu.auto_over_plain --><!-- /fig --> b <!-- fig:cpu.runs -->7")
    assert figures.main([]) == 1
    assert "README.md: a mark is not closed" in capsys.readouterr().err
    page.write_text("a\n<!-- fig:cpu.runs -->3<!-- /fig -->")
    assert figures.main(["--check"]) == 1
    assert "README.md: a figure begins a line" in capsys.readouterr().err
    page.write_text(
        "a <!-- fig:cpu.auto_over_plain --><!-- /fig --> <!-- fig:cpu.auto_rate -->1<!-- /fig -->"
    )
    assert figures.main(["--check"]) == 1
    assert "README.md differs" in capsys.readouterr().err
    assert figures.main([]) == 0
    assert page.read_text() == (
        "a <!-- fig:cpu.auto_over_plain -->1.45<!-- /fig --> "
        "<!-- fig:cpu.auto_rate -->145<!-- /fig -->"
    )
    assert figures.main(["--check"]) == 0

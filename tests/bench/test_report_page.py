"""The report as a page: what it says, and what a real browser makes of it."""

import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from sapwood.backends.toy import ToyBackend
from sapwood.bench.page import axes, charts
from sapwood.bench.page.page import page, scoped
from sapwood.cli import options
from sapwood.cli.main import main
from sapwood.engine import cost_profiler
from sapwood.llm import LLM
from tests.helpers import browser, byte_tokenizer

RECIPES = "plain,pld,recycling,suffix"
LINES = "[...document.querySelectorAll('#setting0 table.sorts tbody tr:not(.off)')]"
ORDER = LINES + ".map(row => row.dataset.who)"
VALUES = LINES + ".map(row => +row.cells[{}].dataset.value)"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A page and its record, of a small benchmark with a sweep and a peer that is not there."""
    folder = tmp_path_factory.mktemp("report")
    target: Any = ToyBackend(vocab=byte_tokenizer.SIZE, context=400)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SAPWOOD_CACHE", str(folder / "cache"))
        patch.setattr(cost_profiler, "QUICK_S", 0.02)
        patch.setattr(
            options.ModelChoice,
            "open",
            lambda self, progress: LLM(target, "plain", text=byte_tokenizer.text()),
        )
        given = [
            "--suite",
            "chat,random",
            "--limit",
            "4",
            "--max-tokens",
            "12",
            "--ignore-eos",
            "--temperature",
            "0,1",
        ]
        files = ["--html", str(folder / "report.html"), "--json", str(folder / "report.json")]
        peers = ["--peers", "openai:http://127.0.0.1:9"]
        assert main(["bench", "--recipes", RECIPES, *given, *peers, *files]) == 0
    return folder / "report.html", json.loads((folder / "report.json").read_text())


# -------------------------------------------------------------------------------------- the file
class Checker(HTMLParser):
    """Counts what is opened and never closed."""

    VOID = frozenset(("meta", "link", "br", "line", "circle", "rect", "path", "polyline", "img"))

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.wrong: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.links += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID and (not self.open or self.open.pop() != tag):
            self.wrong.append(tag)


def test_the_page_is_whole_and_needs_no_network(made: tuple[Path, dict[str, Any]]) -> None:
    text = made[0].read_text()
    checker = Checker()
    checker.feed(text)
    assert (checker.open, checker.wrong, checker.links) == ([], [], ["data:,"])
    assert not re.search(r"url\(|@import|https?://(?!www\.w3\.org/2000/svg|127\.0\.0\.1)", text)
    assert page(made[1]) == text  # from the record alone


def test_what_recipes_are_called_cannot_break_the_page(made: tuple[Path, dict[str, Any]]) -> None:
    record = json.loads(
        json.dumps(made[1]).replace('"pld"', json.dumps("</script><b onload='x'>&"))
    )
    text = page(record)
    assert "<b onload" not in text
    checker = Checker()
    checker.feed(text)
    assert (checker.open, checker.wrong) == ([], [])


def test_records_of_earlier_versions_can_be_shown() -> None:
    for path in sorted((Path(__file__).parents[2] / "benchmarks" / "results").glob("cpu-*.json")):
        record = json.loads(path.read_text())
        if "suite" in record:
            assert record["model"]["name"] in page(record)


def test_round_numbers_along_an_axis() -> None:
    assert axes.AxisScale(0, 1, 0, 100).ticks() == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1.0])
    assert axes.AxisScale(1, 64, 0, 100, doubling=True).ticks() == [1, 2, 4, 8, 16, 32, 64]
    assert axes.AxisScale(1, 64, 0, 60, doubling=True).at(8) == 30
    assert axes.AxisScale(3, 3, 0, 100).at(3) == 50
    assert charts.shortened("a" * 30) == "a" * 19 + "…"


def test_the_style_of_a_tree_stays_inside_it() -> None:
    svg = "<svg width='1'><style>\ntext{x:1}\n.a rect,.b{y:2}\n</style><text/></svg>"
    assert scoped(svg, 3) == (
        "<svg class=\"tree3\" width='1'><style>.tree3 text{x:1}.tree3 .a rect,.tree3 .b{y:2}</style><text/></svg>"
    )


# ------------------------------------------------------------------------------------ a browser
@pytest.fixture(scope="module")
def tab(made: tuple[Path, dict[str, Any]]) -> Iterator[browser.Browser]:
    if browser.CHROMIUM is None:
        pytest.skip(browser.MISSING)
    with browser.Browser() as opened:
        opened.resize(1280, 1600)
        opened.open(made[0].as_uri())
        yield opened


def test_it_loads_without_a_complaint(
    tab: browser.Browser, made: tuple[Path, dict[str, Any]]
) -> None:
    assert tab.problems == []
    assert [url for url in tab.requests if not url.startswith(("file:", "data:", "about:"))] == []
    assert (
        tab.run("document.querySelector('h1').textContent")
        == f"{made[1]['model']['name']}, side by side"
    )


def test_every_chart_is_drawn(tab: browser.Browser, made: tuple[Path, dict[str, Any]]) -> None:
    rows = [row for row in made[1]["rows"] if row["temperature"] == 0]
    ran = [row for row in rows if row["category"] == "all" and row["skipped"] is None]

    def count(kind: str, what: str) -> int:
        found: int = tab.run(f"document.querySelectorAll('#setting0 svg.{kind} {what}').length")
        return found

    assert count("categories", ".mark circle") == 3 * 3  # recipes but plain, two categories and all
    assert count("passes", ".mark circle") == count("cost", ".mark circle") == len(ran) == 4
    assert count("cost", "polyline.curve") == len(made[1]["cost"]["contexts"])
    told = [row for row in ran if row["reliability"]]
    assert count("calibration", ".mark polyline") == len(told) > 0
    assert count("calibration", ".mark circle") == sum(len(row["reliability"]) for row in told)
    assert count("split", "rect") == 3 * 4
    assert tab.run("document.querySelectorAll('svg.sweep .mark polyline').length") == 4
    assert tab.run("document.querySelectorAll('.tree svg').length") == len(made[1]["samples"]) > 0
    sizes = tab.run(
        "[...document.querySelectorAll('#setting0 svg.chart')].map(it => it.getBoundingClientRect().height)"
    )
    assert len(sizes) == 5
    assert min(sizes) > 80


def test_points_stand_where_their_numbers_are(
    tab: browser.Browser, made: tuple[Path, dict[str, Any]]
) -> None:
    rows = {
        row["recipe"]: row
        for row in made[1]["rows"]
        if row["category"] == "all" and row["temperature"] == 0
    }
    script = (
        "Object.fromEntries([...document.querySelectorAll('#setting0 svg.passes .mark')].map(it => {"
        " const box = it.querySelector('circle').getBoundingClientRect(); return [it.dataset.who, [box.x, box.y]] }))"
    )
    places = tab.run(script)
    names = sorted(places)
    assert sorted(names, key=lambda name: places[name][0]) == sorted(
        names, key=lambda it: rows[it]["nodes_per_pass"]
    )
    assert sorted(names, key=lambda name: -places[name][1]) == sorted(
        names, key=lambda it: rows[it]["tokens_per_pass"]
    )


def test_the_table_sorts(tab: browser.Browser, made: tuple[Path, dict[str, Any]]) -> None:
    heads = tab.run(
        "[...document.querySelectorAll('#setting0 table.sorts thead th')].map(it => it.textContent)"
    )
    place = heads.index("nodes / pass")
    button = f"#setting0 table.sorts thead th:nth-child({place + 1}) button"
    tab.run(f"document.querySelector({json.dumps(button)}).scrollIntoView({{block: 'center'}})")
    tab.click(button)
    falling = tab.run(VALUES.format(place))
    assert falling == sorted(falling, reverse=True)
    assert (
        tab.run(f"document.querySelector({json.dumps(button)}).parentElement.ariaSort")
        == "descending"
    )
    tab.click(button)
    assert tab.run(VALUES.format(place)) == falling[::-1]
    tab.run("document.querySelector('#setting0 table.sorts thead button').focus()")
    tab.press("Enter")  # by the keyboard as well
    assert tab.run(ORDER) == sorted(RECIPES.split(","))
    last = tab.run("document.querySelector('#setting0 table.sorts tbody tr.off').textContent")
    assert "cannot be reached" in last
    assert tab.problems == []


def test_settings_and_highlights(tab: browser.Browser) -> None:
    assert tab.run("document.getElementById('setting1').hidden") is True
    tab.run("document.querySelector('.tabs button').focus()")
    tab.press("ArrowRight")
    assert tab.run("document.getElementById('setting1').hidden") is False
    assert tab.run("document.getElementById('setting0').hidden") is True
    tab.press("ArrowLeft")
    tab.run("document.querySelector('.legend button[data-who=pld]').click()")
    assert tab.run("document.querySelectorAll('#setting0 .mark.chosen[data-who=pld]').length") > 3
    faded = "getComputedStyle(document.querySelector('#setting0 svg.passes .mark[data-who=suffix]')).opacity"
    tab.wait(f"+{faded} < 0.5")
    tab.run("document.querySelector('.legend button[data-who=pld]').click()")
    tab.wait(f"+{faded} === 1")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_it_reads_well_in_both_themes_and_on_a_phone(tab: browser.Browser, theme: str) -> None:
    tab.prefer(prefers_color_scheme=theme)
    ground = tab.run("getComputedStyle(document.body).backgroundColor")
    ink = tab.run("getComputedStyle(document.body).color")
    light = [sum(map(int, re.findall(r"\d+", colour)[:3])) for colour in (ground, ink)]
    assert (light[0] > light[1]) == (theme == "light")
    assert abs(light[0] - light[1]) > 380
    tab.resize(390, 800, phone=True)
    assert tab.run("document.documentElement.scrollWidth") <= 390
    tab.resize(1280, 1600)

"""The page of a trace: whole in itself, and drawn and usable in a real browser."""

import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from sapwood.trace.page import content, page
from sapwood.trace.rounds import Trace
from tests.helpers import browser
from tests.helpers.trace_records import LIVELY, record

BOXES = """[...document.querySelectorAll('#tree .node .box')].map(box => {
    const r = box.getBoundingClientRect(); return [r.x, r.y, r.right, r.bottom]})"""
HEIGHTS = """[...document.querySelectorAll('#times .col')].map(col => [...col.querySelectorAll('rect')].slice(0, 3)
    .map(rect => +rect.getAttribute('height')).reduce((a, b) => a + b))"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Trace]:
    folder: Path = tmp_path_factory.mktemp("page")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SAPWOOD_CACHE", str(folder))
        patch.setattr("sapwood.engine.cost_profiler.QUICK_S", 0.0)
        _, _, trace = record(folder / "t.jsonl", LIVELY, max_tokens=24)
    path = folder / "t.html"
    path.write_text(page(trace), encoding="utf-8")
    return path, trace


class Loads(HTMLParser):
    """Collects what a page would load from elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [value or "" for name, value in attrs if name in ("src", "href")]


def test_the_page_needs_nothing_but_itself(made: tuple[Path, Trace]) -> None:
    text = made[0].read_text(encoding="utf-8")
    reader = Loads()
    reader.feed(text)
    assert reader.found == []
    assert not re.search(r"@import|url\(|fetch\(", text)


def test_what_a_text_says_cannot_break_the_page(made: tuple[Path, Trace]) -> None:
    trace = made[1]
    kept = dict(trace.words)
    trace.words[trace.rounds[0].tokens[0]] = "</script><script>alert(1)</script>"
    try:
        text = page(trace)
    finally:
        trace.words = kept
    assert text.count("<script") == 2
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert data is not None
    assert "</script><script>alert(1)</script>" in json.loads(data[1])["words"].values()


def test_the_page_knows_every_round(made: tuple[Path, Trace]) -> None:
    trace = made[1]
    known = content(trace)
    assert [len(prompt["rounds"]) for prompt in known["prompts"]] == [
        len(trace.of(place)) for place in range(3)
    ]
    assert known["voices"] == [[0, "recycling"]]
    for line, one in zip(known["prompts"][0]["rounds"], trace.of(0), strict=True):
        assert sorted(line["order"]) == list(range(1, len(one.grown)))
        assert line["tokens"] == one.tokens
        assert [node["p"] is not None for node in line["nodes"]] == [
            node in one.checked for node in range(len(one.grown))
        ]


# ------------------------------------------------------------------------------------ a browser
@pytest.fixture(scope="module")
def tab(made: tuple[Path, Trace]) -> Iterator[browser.Browser]:
    if browser.CHROMIUM is None:
        pytest.skip(browser.MISSING)
    with browser.Browser() as opened:
        opened.resize(1280, 1200)
        opened.open(made[0].as_uri())
        yield opened


def count(tab: browser.Browser, selector: str) -> int:
    return int(tab.run(f"document.querySelectorAll({json.dumps(selector)}).length"))


def go(tab: browser.Browser, prompt: int, place: int) -> None:
    tab.run(f"choose({prompt}); go({{round: {place}}})")


def busiest(trace: Trace) -> tuple[int, int]:
    """Prompt and number of the round of which most was accepted."""
    rounds = [
        (one.verdict.accepted, one.prompt, place)
        for p in range(3)
        for place, one in enumerate(trace.of(p))
    ]
    _, prompt, place = max(rounds)
    return prompt, place


def test_it_loads_without_a_complaint(tab: browser.Browser, made: tuple[Path, Trace]) -> None:
    assert tab.problems == []
    assert tab.requests == [made[0].as_uri()]
    assert tab.run("document.title") == "sapwood trace"


def test_every_round_can_be_seen(tab: browser.Browser, made: tuple[Path, Trace]) -> None:
    trace = made[1]
    for prompt in range(3):
        for place, one in enumerate(trace.of(prompt)):
            go(tab, prompt, place)
            assert count(tab, "#tree .node.good") == one.verdict.accepted
            assert count(tab, "#tree .node.bad") == len(one.checked) - 1 - one.verdict.accepted
            assert count(tab, "#tree .node.own") == 1
            assert count(tab, "#tree .node.root") == 1
            assert count(tab, "#tree path.edge") == len(one.checked)
    assert tab.problems == []


def test_nodes_that_were_not_checked_come_when_asked_for(
    tab: browser.Browser, made: tuple[Path, Trace]
) -> None:
    trace = made[1]
    prompt, place = busiest(trace)
    one = trace.of(prompt)[place]
    go(tab, prompt, place)
    assert count(tab, "#tree .node.cut") == 0
    tab.click("#all")
    tab.wait(f"document.querySelectorAll('#tree .node').length === {len(one.grown) + 1}")
    assert count(tab, "#tree .node.cut") == len(one.grown) - len(one.checked)
    tab.click("#all")


def test_labels_do_not_lie_on_each_other(tab: browser.Browser, made: tuple[Path, Trace]) -> None:
    go(tab, *busiest(made[1]))
    boxes = tab.run(BOXES)
    for place, one in enumerate(boxes):
        for other in boxes[place + 1 :]:
            apart = (
                one[2] <= other[0] or other[2] <= one[0] or one[3] <= other[1] or other[3] <= one[1]
            )
            assert apart, (one, other)


def test_a_node_shows_its_chances_and_what_the_target_says_next(
    tab: browser.Browser, made: tuple[Path, Trace]
) -> None:
    trace = made[1]
    prompt, place = busiest(trace)
    one = trace.of(prompt)[place]
    go(tab, prompt, place)
    node = one.checked[one.verdict.path[1]]
    tab.click(f'[data-node="{node}"] .box')
    said = tab.run("document.getElementById('node').textContent")
    assert "accepted" in said
    assert f"{one.grown.probs[node]:.3f}" in said
    assert "rank 1" in said
    assert "recycling" in said
    assert count(tab, "#node .law tr") == 6
    tab.click('[data-node="-1"] .box')
    assert "The target's own token" in tab.run("document.getElementById('node').textContent")


def test_keys_buttons_and_the_text_step_through_the_rounds(
    tab: browser.Browser, made: tuple[Path, Trace]
) -> None:
    rounds = len(made[1].of(0))
    go(tab, 0, 0)
    tab.run("document.activeElement.blur()")
    tab.press("ArrowRight")
    assert tab.run("at.round") == 1
    tab.press("End")
    assert tab.run("document.getElementById('where').textContent") == f"{rounds} / {rounds}"
    tab.press("Home")
    tab.click("#next")
    tab.click("#next")
    assert tab.run("at.round") == 2
    tab.click("#back")
    assert tab.run("at.round") == 1
    tab.run("document.querySelector('#text button[data-round=\"4\"]').click()")
    assert tab.run("at.round") == 4
    assert count(tab, "#text .now") == made[1].of(0)[4].kept
    shown = "".join(tab.run("[...document.querySelectorAll('#text button')].map(b=>b.textContent)"))
    assert shown == "".join(map(made[1].spell, made[1].answer(0)[: made[1].kept_tokens(0)]))


def test_a_tree_grows_before_the_eyes(tab: browser.Browser, made: tuple[Path, Trace]) -> None:
    go(tab, *busiest(made[1]))
    whole = count(tab, "#tree .node")
    tab.run(
        "document.getElementById('grown').value = 1; document.getElementById('grown').dispatchEvent(new Event('input'))"
    )
    assert count(tab, "#tree .node:not(.hidden)") <= 2 < whole
    tab.run("document.getElementById('grow').click()")
    tab.wait(f"document.querySelectorAll('#tree .node:not(.hidden)').length === {whole}")


def test_times_and_costs_are_drawn(tab: browser.Browser, made: tuple[Path, Trace]) -> None:
    trace = made[1]
    go(tab, 1, 0)
    assert count(tab, "#times .col") == len(trace.of(1))
    heights: list[float] = tab.run(HEIGHTS)
    seconds = [one.times.total for one in trace.of(1)]
    scale = heights[0] / seconds[0]
    assert heights == pytest.approx([scale * one for one in seconds], rel=1e-6)
    if trace.header.measured:
        assert count(tab, "#cost .curve") == 1
    else:
        assert "not measured" in tab.run("document.getElementById('cost').textContent")


def test_the_cost_curve_holds_this_rounds_point(made: tuple[Path, Trace], tmp_path: Path) -> None:
    if browser.CHROMIUM is None:
        pytest.skip(browser.MISSING)
    import dataclasses

    trace = made[1]
    measured: Any = dataclasses.replace(
        trace, header=dataclasses.replace(trace.header, measured=True)
    )
    path = tmp_path / "t.html"
    path.write_text(page(measured), encoding="utf-8")
    with browser.Browser() as tab:
        tab.open(path.as_uri())
        assert count(tab, "#cost .curve") == count(tab, "#cost .point") == 1
        one = trace.of(0)[0]
        assert f"{len(one.checked)} rows took" in tab.run(
            "document.getElementById('cost').textContent"
        )
        assert tab.problems == []


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_it_reads_well_in_both_themes_and_on_a_phone(tab: browser.Browser, theme: str) -> None:
    tab.prefer(prefers_color_scheme=theme)
    colours = [
        tab.run(f"getComputedStyle(document.body).{name}") for name in ("backgroundColor", "color")
    ]
    ground, ink = (sum(map(int, re.findall(r"\d+", colour)[:3])) for colour in colours)
    assert (ground > ink) == (theme == "light")
    assert abs(ground - ink) > 380
    tab.resize(390, 800, phone=True)
    assert tab.run("document.documentElement.scrollWidth") <= 390
    tab.resize(1280, 1200)

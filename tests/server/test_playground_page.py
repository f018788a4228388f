"""The playground in a real browser: type, read, look, stop, come back."""

import re
import time
from typing import Any

import pytest

from tests.helpers.browser import Browser
from tests.helpers.playground_server import (
    ENDED,
    RUNNING,
    SAID,
    ask,
    chromium,
    listening,
    open_page,
)

TEXT = (
    "A tree grows a ring a year. A tree grows a ring a year. A tree grows <b>tall</b> & old \u2713."
)
KEY = "a-long-enough-key"

pytestmark = pytest.mark.usefixtures("own_cache")


@chromium
def test_type_stream_colours_tree(page: Browser) -> None:
    with listening(TEXT) as address:
        open_page(page, address)
        ask(page, "How does it grow?")
        page.wait(f"{ENDED} && document.querySelectorAll('.token').length > 20")
        assert page.run(SAID) == TEXT
        assert page.run("document.querySelector('.turn.user p').textContent") == "How does it grow?"
        kinds = page.run(
            "[...new Set([...document.querySelectorAll('.text .token')].map(e => e.className))]"
        )
        assert set(kinds) >= {"token drafted", "token own"}
        colours = page.run(
            "[...document.querySelectorAll('.text .drafted')].map(e => getComputedStyle(e).backgroundColor)"
        )
        assert all(colour != "rgba(0, 0, 0, 0)" for colour in colours)
        names = page.run("[...document.querySelectorAll('#legend b')].map(e => e.textContent)")
        assert names == ["suffix", "recycling", "the model itself"]
        assert page.run("document.querySelectorAll('#tree .node').length") >= 2
        assert "tokens" in page.run("document.querySelector('.turn.assistant footer').textContent")
        assert float(page.run("document.getElementById('rate').textContent").replace(",", "")) > 0
        assert page.run("document.querySelectorAll('#cost .now, #cost .cost').length") == 2
        assert all(request.startswith(address) for request in page.requests)


@chromium
def test_every_round_can_be_looked_at_with_the_keyboard(page: Browser) -> None:
    with listening(TEXT) as address:
        open_page(page, address)
        ask(page, "Hi")
        page.wait(f"{ENDED} && document.querySelectorAll('.token').length > 20")
        rounds = page.run("Number(document.getElementById('scrub').max)")
        assert rounds > 3
        page.run("document.getElementById('scrub').focus()")
        page.press("Home")
        for _ in range(rounds - 1):
            page.press("ArrowRight")
            drawn = page.run("document.querySelectorAll('#tree .node.accepted').length")
            if drawn >= 2:
                break
        assert drawn >= 2, "no round accepted two drafted tokens"
        text = page.run("document.getElementById('round-text').textContent")
        assert f"of {rounds}: {drawn} of " in text
        marked = page.run(
            "[...document.querySelectorAll('.token.here')].map(e => e.textContent).join('')"
        )
        path = page.run(
            "[...document.querySelectorAll('#tree .accepted text')].map(e => e.textContent).join('')"
        )
        assert path.replace("\u00b7", "").strip() in marked
        walk(page)


def walk(page: Browser) -> None:
    """Along the accepted path to the model's own token, and back to the root."""
    page.run("document.querySelector('#tree .node[tabindex=\"0\"]').focus()")
    seen = []
    for _ in range(10):
        seen.append(page.run("document.activeElement.getAttribute('aria-label')"))
        page.press("ArrowRight")
    assert "last token of the text" in seen[0]
    assert "drafted with probability" in seen[1]
    assert "added by the model itself" in seen[-1]
    assert page.run("document.getElementById('node-text').textContent").endswith(
        "added by the model itself"
    )
    page.press("Home")
    assert page.run("document.activeElement.dataset.node") == "0"


@chromium
def test_stop_ends_the_answer_and_frees_its_memory(page: Browser) -> None:
    with listening(TEXT * 12, wait=0.05) as address:
        open_page(page, address)
        ask(page, "Go on")
        page.wait(f"{RUNNING} && document.querySelectorAll('.token').length > 5")
        page.press("Escape")
        page.wait(ENDED)
        said = page.run(SAID)
        assert 0 < len(said) < len(TEXT) * 12
        assert (
            page.run("document.querySelector('.turn.assistant footer span').textContent")
            == "stopped"
        )
        assert page.run("document.activeElement.id") == "question"
        used = "fetch('/metrics').then(r => r.text()).then(t => /kv_blocks.kind=.used.. 0/.test(t))"
        page.wait(used, 5)
        time.sleep(0.2)
        assert page.run(SAID) == said


@chromium
def test_a_reload_keeps_the_conversation_and_a_new_chat_ends_it(page: Browser) -> None:
    with listening(TEXT) as address:
        open_page(page, address)
        ask(page, "Hi")
        page.wait(f"{ENDED} && document.querySelectorAll('.token').length > 20")
        before = page.run(
            "[document.querySelectorAll('.token.drafted').length, document.querySelector('.log').innerText]"
        )
        page.reload()
        page.wait("document.getElementById('facts').textContent")
        assert page.run(SAID) == TEXT
        again = page.run(
            "[document.querySelectorAll('.token.drafted').length, document.querySelector('.log').innerText]"
        )
        assert again == before
        ask(page, "And then?")
        page.wait(f"{ENDED} && document.querySelectorAll('.turn.assistant').length === 2")
        page.click("#fresh")
        assert page.run("document.querySelectorAll('.turn').length") == 0
        page.reload()
        page.wait("document.getElementById('facts').textContent")
        assert page.run("document.querySelectorAll('.turn').length") == 0


@chromium
def test_a_key_is_asked_for_once_and_a_refusal_is_said(page: Browser) -> None:
    with listening(TEXT, keys=(KEY,)) as address:
        page.open(address)
        page.run("sessionStorage.clear(), localStorage.clear()")
        page.reload()
        page.wait("document.getElementById('key-dialog').open")
        page.run("document.getElementById('key').focus()")
        page.type(KEY)
        page.press("Enter")
        page.wait("document.getElementById('facts').textContent")
        page.run("document.getElementById('top_k').value = -2")
        ask(page, "Hi")
        said = page.wait(
            "!document.getElementById('alert').hidden && document.getElementById('alert').textContent"
        )
        assert "top_k" in said
        assert (
            page.run("document.getElementById('question').value") == "Hi"
        )  # nothing typed is lost
        assert page.run("document.querySelectorAll('.turn').length") == 0
    page.problems[:] = [
        problem for problem in page.problems if not re.search(r"status of 40[01]", problem)
    ]


@chromium
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_shows_everything_without_sideways_scrolling(page: Browser, scheme: str) -> None:
    page.resize(360, 740, phone=True)
    page.prefer(prefers_color_scheme=scheme)
    with listening(TEXT) as address:
        open_page(page, address)
        assert page.run("document.documentElement.scrollWidth") == 360
        ask(page, "Hi")
        page.wait(f"{ENDED} && document.querySelectorAll('.token').length > 20")
        assert page.run("document.documentElement.scrollWidth") == 360
        for name in ("question", "send", "tree", "log"):
            box = page.run(f"document.getElementById('{name}').getBoundingClientRect().toJSON()")
            assert box["left"] >= 0, name
            assert box["right"] <= 361, name
            assert box["top"] >= 0, name
            assert box["bottom"] <= 741, name
            assert box["height"] > 20, name
        small = page.run(
            "[...document.querySelectorAll('.top button, .bar button')].filter(e => e.offsetHeight)"
            ".filter(e => e.offsetHeight < 44).map(e => e.id)"
        )
        assert small == [], "too small for a thumb"
        assert poor_contrasts(page) == []


def poor_contrasts(page: Browser) -> list[Any]:
    """Visible texts whose colour has less than 4.5 : 1 against the ground they stand on."""
    return list(page.run(CONTRASTS))


CONTRASTS = """(() => {
  const canvas = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
  const rgb = (colour, under) => {
    canvas.fillStyle = under; canvas.fillRect(0, 0, 1, 1);
    canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
    const [r, g, b] = canvas.getImageData(0, 0, 1, 1).data;
    return `rgb(${r} ${g} ${b})`;
  };
  const light = (colour) => {
    const shares = colour.match(/[0-9]+/g).map((v) => v / 255);
    const [r, g, b] = shares.map((v) => v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4);
    return .2126 * r + .7152 * g + .0722 * b;
  };
  const ground = (element) => {
    const chain = [];
    for (let e = element; e; e = e.parentElement) chain.unshift(getComputedStyle(e).backgroundColor);
    return chain.reduce((under, colour) => rgb(colour, under), "rgb(255 255 255)");
  };
  const poor = [];
  for (const element of document.querySelectorAll("h1, h2, p, b, span, button, label, select, output, textarea")) {
    const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
    if (!own || !element.offsetHeight || element.closest(".hidden, [disabled]")) continue;
    const style = getComputedStyle(element), under = ground(element), over = rgb(style.color, under);
    const [dark, bright] = [light(under), light(over)].sort((one, other) => one - other);
    const ratio = (bright + .05) / (dark + .05);
    const name = element.className || element.id || element.tagName;
    if (ratio < 4.5) poor.push([name, element.textContent.slice(0, 20), ratio.toFixed(2)]);
  }
  return poor;
})()"""


@chromium
def test_everything_has_a_name_and_answers_are_spoken(page: Browser) -> None:
    page.prefer(prefers_reduced_motion="reduce")
    with listening(TEXT) as address:
        open_page(page, address)
        ask(page, "Hi")
        page.wait(f"{ENDED} && document.querySelectorAll('.token').length > 20")
        nodes = page.call("Accessibility.getFullAXTree")["nodes"]
        asked = {
            "button",
            "textbox",
            "combobox",
            "slider",
            "spinbutton",
            "tree",
            "treeitem",
            "log",
            "status",
            "image",
        }
        named = [
            (node["role"]["value"], node.get("name", {}).get("value", ""))
            for node in nodes
            if not node["ignored"] and node["role"]["value"] in asked
        ]
        assert {role for role, _ in named} >= {
            "button",
            "textbox",
            "combobox",
            "slider",
            "tree",
            "treeitem",
            "log",
        }
        assert [role for role, name in named if not name and role not in ("status", "log")] == []
        assert "End of the answer" in page.run("document.getElementById('status').textContent")
        assert page.run("document.querySelector('#status').getAttribute('aria-live')") == "polite"
        moving = page.run("document.getAnimations().filter(a => a.playState === 'running').length")
        assert moving == 0


@chromium
def test_the_tab_key_reaches_every_control(page: Browser) -> None:
    with listening(TEXT) as address:
        open_page(page, address)
        reached = set[str]()
        for _ in range(24):
            page.press("Tab")
            reached.add(
                page.run(
                    "document.activeElement.id || document.activeElement.getAttribute('class')"
                )
            )
        assert reached >= {
            "skip",
            "theme",
            "fresh",
            "log",
            "question",
            "recipe",
            "more",
            "send",
            "node root",
        }

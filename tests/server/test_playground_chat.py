"""Conversations on the page: later answers, Markdown, copying, races, system prompt, small windows."""

import json
import re
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

CODE = 'def grow(rings):\n    """One more."""\n    return rings + [len(rings)]  # <b>&amp;\n'
MARKDOWN = f"""## Rings
A tree grows **one ring** a *year*, see `grow` and [a page](https://example.org/rings).

```python
{CODE}```

1. First
   - inner `x`
2. Second

> Quoted

| ring | width |
| --- | ---: |
| one | 2 |

<img src=x onerror="document.title='broken'"><script>document.title='broken'</script>
[bad](javascript:document.title='broken') **open"""
LONG = "A line.\n\n" * 24
WIDE = f"""## Rings
See [a page](https://example.org/rings).

```python
{CODE}```

| ring | width |
| --- | ---: |
| one | 2 |
"""
KEY = "a-long-enough-key"

pytestmark = pytest.mark.usefixtures("own_cache")


def finish(page: Browser, question: str, count: int = 1, *, by: str = "") -> None:
    """Ask, and wait until the answer is complete."""
    if by:
        page.click("#question")
        page.type(question)
        page.click(by)
    else:
        ask(page, question)
    page.wait(f"document.querySelectorAll('#log > .turn:not(.user)').length === {count}")
    page.wait(ENDED)


def below(page: Browser) -> float:
    """Pixels of the log that lie below its visible part."""
    log = "document.getElementById('log')"
    return float(page.run(f"{log}.scrollHeight - {log}.scrollTop - {log}.clientHeight"))


@chromium
def test_the_second_answer_is_followed_too_until_the_reader_scrolls_away(page: Browser) -> None:
    page.resize(1280, 640)
    with listening(LONG, wait=0.004) as address:
        open_page(page, address)
        for count in (1, 2, 3):
            ask(page, "Go on")
            for _ in range(4):
                page.wait(f"{RUNNING} || document.querySelectorAll('.turn').length === {2 * count}")
                assert below(page) < 40
            page.wait(ENDED)
            assert below(page) < 40
            drawn = page.run("document.getElementById('round-text').textContent")
            rounds = page.run("document.getElementById('scrub').max")
            assert drawn.startswith(f"round {rounds} of {rounds}")
        ask(page, "Go on")
        page.wait(f"{RUNNING} && document.querySelectorAll('.turn').length === 8")
        page.run("document.getElementById('log').scrollTop = 0")
        page.wait(ENDED)
        assert page.run("document.getElementById('log').scrollTop") == 0


@chromium
def test_markdown_is_shown_and_html_is_text(page: Browser) -> None:
    with listening(MARKDOWN) as address:
        open_page(page, address)
        page.run("document.getElementById('max_tokens').value = 1200")
        finish(page, "Hi")
        tags = page.run(
            "[...new Set([...document.querySelectorAll('.text *')].map(e => e.localName))].sort()"
        )
        found = set(tags)
        assert found >= {"h4", "p", "strong", "em", "code", "a", "figure", "pre", "ol", "ul", "li"}
        assert found >= {"blockquote", "table", "th", "td"}
        assert not found & {"img", "script", "b"}
        assert page.run("document.querySelector('.text ol ul li code').textContent") == "x"
        assert page.run("document.querySelector('td:last-child').className") == "right"
        links = page.run(
            "[...document.querySelectorAll('.text a')].map(e => [e.textContent, e.href, e.rel])"
        )
        assert links == [["a page", "https://example.org/rings", "noopener noreferrer nofollow"]]
        said = page.run(SAID)
        assert "<img src=x onerror=\"document.title='broken'\">" in said
        assert "**open" in said
        assert "broken" not in page.run("document.title")
        assert page.run("document.querySelectorAll('.text pre .token.drafted').length") > 3


@chromium
def test_reasoning_stands_apart_and_is_not_sent_back(page: Browser) -> None:
    with listening("<think>\nTwo **ways**.\n</think>\n\nTake the first.") as address:
        open_page(page, address)
        finish(page, "Hi")
        assert page.run("document.querySelector('.thought strong').textContent") == "ways"
        assert page.run("document.querySelector('.text > p').textContent") == "Take the first."
        assert "think>" not in page.run(SAID)
        page.run(INTERCEPT)
        finish(page, "And?", 2)
        messages = json.loads(page.run("window.sent[0]"))["messages"]
        assert messages[1] == {"role": "assistant", "content": "Take the first."}


@chromium
def test_a_code_block_is_copied_as_it_was_written(page: Browser) -> None:
    with listening(MARKDOWN) as address:
        open_page(page, address)
        page.call(
            "Browser.grantPermissions",
            permissions=["clipboardReadWrite", "clipboardSanitizedWrite"],
        )
        page.run("document.getElementById('max_tokens').value = 1200")
        finish(page, "Hi")
        page.run("document.querySelector('.code .copy').scrollIntoView({ block: 'center' })")
        page.click(".code .copy")
        page.wait("document.querySelector('.code .copy').textContent === 'Copied'")
        assert page.run("navigator.clipboard.readText()") == CODE.rstrip("\n")
        page.run("document.querySelector('footer .copy').scrollIntoView({ block: 'center' })")
        page.click(".turn footer .copy")
        page.wait("document.querySelector('.turn footer .copy').textContent === 'Copied'")
        assert page.run("navigator.clipboard.readText()") == MARKDOWN


@chromium
def test_a_race_runs_both_and_its_text_goes_on(page: Browser) -> None:
    text = "A tree grows a ring a year. " * 6
    with listening(text, wait=0.01) as address:
        open_page(page, address)
        finish(page, "Go", by="#race")
        lanes = page.run(
            "[...document.querySelectorAll('.lane')].map(e => [e.querySelector('b').textContent,"
            " e.querySelector('.text').textContent, e.querySelector('footer').innerText])"
        )
        assert [name for name, _, _ in lanes] == ["plain", "ours"]
        assert {said for _, said, _ in lanes} == {text}
        plain, ours = ([float(x) for x in re.findall(r"[\d.]+", foot)] for _, _, foot in lanes)
        assert plain[0] == ours[0]  # tokens
        assert plain[1] > ours[1]  # seconds
        assert plain[2] == 1.0  # per pass
        assert ours[2] > 1.5
        verdict = page.run("document.querySelector('.verdict').textContent")
        factor = float(re.search(r"ours was ([\d.]+)\u00d7", verdict)[1])  # type: ignore[index]
        assert factor == pytest.approx(plain[1] / ours[1], rel=0.2)
        assert "same, letter for letter" in verdict
        names = page.run("[...document.querySelectorAll('#legend b')].map(e => e.textContent)")
        assert names == ["suffix", "recycling", "the model itself"]
        page.run(INTERCEPT)
        finish(page, "And then?", 2)
        messages = json.loads(page.run("window.sent[0]"))["messages"]
        assert [message["role"] for message in messages] == ["user", "assistant", "user"]
        assert messages[1]["content"] == text
        page.reload()
        page.wait("document.querySelectorAll('.lane').length === 2")
        assert page.run("document.querySelector('.verdict').textContent") == verdict


INTERCEPT = """(() => {
  const real = window.fetch;
  window.sent = [];
  window.fetch = (url, options) => { if (options?.body) window.sent.push(options.body); return real(url, options); };
  return true;
})()"""


@chromium
def test_a_race_can_be_stopped(page: Browser) -> None:
    with listening("A tree grows. " * 60, wait=0.03) as address:
        open_page(page, address)
        page.click("#question")
        page.type("Go")
        page.click("#race")
        page.wait(f"{RUNNING} && document.querySelectorAll('.lane .token').length > 5")
        page.press("Escape")
        page.wait(ENDED)
        assert page.run("document.querySelector('.verdict').textContent") == "stopped"
        finish(page, "And then?", 2)


@chromium
def test_the_system_prompt_is_sent_first_and_kept(page: Browser) -> None:
    with listening("Yes.") as address:
        open_page(page, address)
        page.click("#more")
        page.click("#system")
        page.type("Be brief.")
        page.run(INTERCEPT)
        finish(page, "Hi")
        finish(page, "Again", 2)
        sent = [json.loads(body)["messages"] for body in page.run("window.sent")]
        assert sent[0] == [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Hi"},
        ]
        assert [message["role"] for message in sent[1]] == ["system", "user", "assistant", "user"]
        page.reload()
        assert page.run("document.getElementById('system').value") == "Be brief."


@chromium
def test_a_text_that_stood_in_the_chat_is_pointed_out(page: Browser) -> None:
    said = "Rings of wood tell how a tree has lived, year by year."
    with listening(said) as address:
        open_page(page, address)
        finish(page, "Hi")
        assert page.run("document.querySelectorAll('.token.again').length") == 0
        finish(page, "Say it again", 2)
        marked = page.run(
            "[...document.querySelectorAll('.turn:last-child .again')].map(e => e.textContent).join('')"
        )
        assert len(marked) > len(said.replace(" ", "")) * 0.8
        title = page.run("document.querySelector('.turn:last-child .again').title")
        assert title == "seen before in this chat"
        foot = page.run("document.querySelector('.turn:last-child footer').textContent")
        assert "tokens seen before in this chat" in foot


@chromium
def test_long_trees_scroll_and_stay_readable(page: Browser) -> None:
    page.resize(1280, 640)
    recipe = "suffix + best + match + fixed(nodes=40, depth=40, width=2)"
    with listening("abcdefghijklmnopqrstuvwxyz. " * 12, recipe=recipe) as address:
        open_page(page, address)
        finish(page, "Go on")
        widest = page.run(
            """(() => {
              const scrub = document.getElementById('scrub'), tree = document.getElementById('tree');
              let best = [0, 99, 0];
              for (let round = 1; round <= Number(scrub.max); round += 1) {
                scrub.value = round;
                scrub.dispatchEvent(new Event('input'));
                const high = tree.querySelector('.node.root text').getBoundingClientRect().height;
                best = [Math.max(best[0], tree.scrollWidth), Math.min(best[1], high), tree.clientWidth];
              }
              return best;
            })()"""
        )
        wide, high, room = widest
        assert wide > 1.5 * room
        assert high > 10  # pixels of a letter's box


WINDOWS = [(1280, 640, False), (390, 844, True), (360, 640, True), (1024, 768, False)]
CUT = """(() => {
  const outside = (box) => box.left < -1 || box.right > innerWidth + 1 || box.top < -1 || box.bottom > innerHeight + 1;
  const found = [];
  for (const element of document.querySelectorAll("button, select, textarea, input, .card, .legend li, .brand, .composer")) {
    if (!element.checkVisibility() || element.closest(".hidden, .skip, dialog, #log, #tree")) continue;
    const box = element.getBoundingClientRect();
    const phone = innerWidth < 861, aside = element.closest(".inside") !== null, option = element.closest("#options") !== null;
    if (outside(box) && !(phone && aside) && !option) found.push([element.id || element.className, JSON.stringify(box)]);
  }
  const inside = document.getElementById("inside");
  if (innerWidth > 860 && inside.scrollHeight > inside.clientHeight + 1) found.push(["inside", inside.scrollHeight, inside.clientHeight]);
  for (const element of document.querySelectorAll(".note, .big, .count, h2, .legend")) {
    if (!element.checkVisibility() || element.closest("dialog")) continue;
    if (element.scrollHeight > element.clientHeight + 2 || element.scrollWidth > element.clientWidth + 2) found.push([element.id || element.className, element.textContent]);
  }
  if (document.documentElement.scrollWidth > innerWidth) found.push(["page", document.documentElement.scrollWidth]);
  return found;
})()"""


@chromium
@pytest.mark.parametrize(("width", "height", "phone"), WINDOWS)
def test_nothing_is_cut_in_small_windows(
    page: Browser, width: int, height: int, phone: bool
) -> None:
    page.resize(width, height, phone=phone)
    with listening(WIDE) as address:
        open_page(page, address)
        assert page.run(CUT) == []
        finish(page, "Hi")
        assert page.run(CUT) == []
        page.click("#more")
        assert page.run(CUT) == []
        page.click("#more")
        finish(page, "Go", 2, by="#race")
        assert page.run(CUT) == []
        assert page.run("innerWidth") == width


@chromium
def test_a_wrong_key_is_told(page: Browser) -> None:
    with listening("Yes.", keys=(KEY,)) as address:
        page.open(address)
        page.run("sessionStorage.clear(), localStorage.clear()")
        page.reload()
        page.wait("document.getElementById('key-dialog').open")
        assert page.run("document.getElementById('key-problem').textContent") == ""
        page.run("document.getElementById('key').focus()")
        page.type("another-key")
        page.press("Enter")
        told = page.wait("document.getElementById('key-problem').textContent")
        assert "does not know this key" in told
        assert page.run("document.getElementById('key-dialog').open")
        page.run("document.getElementById('key').focus()")
        page.type(KEY)
        page.press("Enter")
        page.wait("document.getElementById('facts').textContent")
        assert not page.run("document.getElementById('key-dialog').open")
    page.problems[:] = [each for each in page.problems if "status of 401" not in each]


@chromium
def test_recipes_are_grouped_and_the_lossy_ones_run(page: Browser) -> None:
    with listening("Yes. Yes. Yes.", recipes=("plain", "suffix", "pld", "bild")) as address:
        open_page(page, address)
        groups: list[Any] = page.run(
            "[...document.querySelectorAll('#recipe optgroup')]"
            ".map(e => [e.label, ...[...e.children].map(o => o.textContent)])"
        )
        assert groups == [
            ["This server's own", "ours"],
            ["Default and baseline", "plain"],
            ["Lookups", "pld", "suffix"],
            ["Changes the text", "bild"],
        ]
        page.run("document.getElementById('recipe').value = 'bild'")
        finish(page, "Hi")
        assert page.run("document.getElementById('alert').hidden")
        assert page.run(SAID)

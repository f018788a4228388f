"""Pictures on the pages of families: all at one place, trimmed, told apart, and written between marks."""

import re
from pathlib import Path
from typing import Any

import pytest
from tools import pictures

from sapwood.backends.toy import ToyBackend
from sapwood.core.tree import Tree
from sapwood.core.types import NO_NODES, Outcome, Verdict
from sapwood.engine.loop import Engine
from sapwood.recipes import RECIPES, resolve

TARGET: Any = ToyBackend(vocab=5, context=400)
SCORES: Any = None


class Letters:
    """A tokenizer of five letters."""

    def spell(self, token: int) -> str:
        """One letter."""
        return "abcde"[token]

    def show(self, tokens: Any) -> str:
        """A text."""
        return "".join(map(self.spell, tokens))


WORDS: Any = Letters()


@pytest.fixture(autouse=True)
def _read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "read_prompt", lambda *_, **__: [0, 1, 2, 0, 1, 2, 0, 1])


def test_every_recipe_has_a_round_that_begins_at_the_place() -> None:
    plain = pictures.play(Engine(TARGET, resolve("plain")), WORDS)
    for name in ("pld", "recycling", "suffix"):
        found = pictures.play(Engine(TARGET, resolve(name)), WORDS)
        assert found.text == plain.text
        assert len(found.text) == pictures.PLACE
        assert found.outcome.tree.tokens[0] == plain.outcome.tree.tokens[0] == plain.text[-1]
    assert found.outcome.tokens[: len(plain.outcome.tokens)] == plain.outcome.tokens


def test_a_recipe_that_drafts_nothing_there_is_shown_later(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = pictures.play(Engine(TARGET, resolve("plain")), WORDS)
    late = resolve("suffix + chain + match + fixed(nodes=3, depth=3, width=1)")
    budget = late.controller.budget
    rounds = iter([NO_NODES] * (pictures.PLACE + 3))
    monkeypatch.setattr(type(late.controller), "budget", lambda _: next(rounds, budget()))
    found = pictures.play(Engine(TARGET, late), WORDS)
    later = len(found.text) - pictures.PLACE
    assert later >= 3
    assert found.text[: pictures.PLACE] == plain.text
    assert found.caption(plain).endswith(f", {later} tokens later")


def chain(length: int) -> Tree:
    tree = Tree(0)
    for node in range(length):
        tree.add(node, 1, 0.9)
    return tree


def test_a_picture_keeps_what_was_accepted_and_what_was_likely() -> None:
    tree = chain(3)
    for token in range(40):
        tree.add(0, token + 5, 0.5 - token / 100)
    rare = tree.add(0, 4, 0.001)
    last = tree.add(rare, 3, 0.001)
    cut, verdict = pictures.trimmed(tree, Verdict((0, rare, last), 2))
    assert len(cut) == pictures.NODES + 1
    assert [cut.tokens[node] for node in verdict.path] == [0, 4, 3]
    assert cut.path(verdict.path[-1]) == list(verdict.path)
    assert cut.child(0, 5) is not None
    assert cut.child(0, 44) is None
    whole, same = pictures.trimmed(chain(3), Verdict((0, 1), 2))
    assert (len(whole), same.path) == (4, (0, 1))


def test_a_long_chain_is_cut_where_nothing_was_accepted() -> None:
    assert pictures.trimmed(chain(20), Verdict((0, 1), 2))[0].height == pictures.DEPTH == 12
    assert pictures.trimmed(chain(20), Verdict(tuple(range(15)), 2))[0].height == 14


def made(tree: Tree, accepted: int = 0, text: tuple[int, ...] = (1, 2)) -> pictures.Round:
    return pictures.Round(
        text, Outcome(tree, tree, Verdict(tuple(range(accepted + 1)), 3), SCORES, 0)
    )


def test_captions_count_and_say_what_is_left_out() -> None:
    plain = made(Tree(0))
    assert made(chain(1), 1).caption(plain) == "1 node, depth 1, 1 accepted"
    assert made(chain(14), 2).caption(plain) == "14 nodes (+2 more), depth 14, 2 accepted"
    assert (
        made(chain(2), text=(1, 1)).caption(plain)
        == "2 nodes, depth 2, 0 accepted, after another text"
    )


def test_trees_that_are_empty_or_equal_are_named_in_words() -> None:
    given = {
        "one": made(chain(2)),
        "none": made(Tree(0)),
        "twin": made(chain(2)),
        "two": made(chain(3)),
    }
    shown, notes = pictures.choose(given)
    assert shown == ["one", "twin", "two"]
    assert notes == ["`none` drafts nothing here.", "`twin` drafts the same here as `one`."]
    many = {str(count): made(chain(count)) for count in range(1, 20)}
    assert len(pictures.choose(many)[0]) == pictures.MOST


def test_wide_pictures_have_a_row_of_their_own() -> None:
    cells = [("one", 100), ("two", 400), ("three", 401), ("four", 9), ("five", 900)]
    rows = [
        [place for place, _ in cells if f">{place}<" in row]
        for row in pictures.grid(cells).split("<tr>")[1:]
    ]
    assert rows == [["one", "two"], ["three"], ["four"], ["five"]]
    assert pictures.grid(cells).count("colspan=2") == 2


def test_a_page_is_filled_between_its_marks_and_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pictures, "DOCS", tmp_path)
    (tmp_path / "pictures").mkdir()
    page = "# Title\n\n<!-- trees: pld, nobody, suffix -->\n\nAfter.\n"
    assert pictures.wanted(page) == ["pld", "nobody", "suffix"]
    rounds = {"pld": made(chain(2), 1), "suffix": made(chain(3), 1)}
    once = pictures.filled(page, rounds, made(Tree(0)), WORDS)
    assert once.startswith("# Title\n\n<!-- trees: pld, nobody, suffix -->\n<table>\n")
    assert once.endswith("<!-- /trees -->\n\nAfter.\n")
    assert "<code>suffix</code>: 3 nodes, depth 3, 1 accepted" in once
    assert "after *bc*" in once
    assert pictures.filled(once, rounds, made(Tree(0)), WORDS) == once
    assert sorted(path.name for path in (tmp_path / "pictures").iterdir()) == [
        "pld.svg",
        "suffix.svg",
    ]
    assert (tmp_path / "pictures" / "pld.svg").read_text().startswith("<svg")


DOCS = pictures.DOCS
KINDS = ("trees", "head trees", "module trees")


def test_every_recipe_is_drawn_on_a_page() -> None:
    pages = [path.read_text() for path in [*(DOCS / "families").glob("*.md"), DOCS / "remote.md"]]
    found = {
        name
        for page in pages
        for kind in KINDS
        for name in pictures.wanted(page, pictures.blocks(kind))
    }
    assert found >= RECIPES.keys() - {"plain"}, "a recipe has no picture: name it in a mark"
    for name in RECIPES.keys() - {"plain"}:
        assert (DOCS / "pictures" / f"{name}.svg").is_file(), f"draw {name} by tools.pictures"
    for page in pages:
        for kind in KINDS:
            assert not pictures.wanted(page, pictures.blocks(kind, drawn=False))


def test_marks_without_pictures_can_be_drawn_alone() -> None:
    page = (
        "<!-- trees: pld -->\n<table>\n<!-- /trees -->\n\n<!-- trees: suffix, auto -->\n\nAfter.\n"
    )
    page += "\n<!-- head trees: clover -->\n<table>\n<!-- /trees -->\n"
    assert pictures.wanted(page) == ["pld", "suffix", "auto"]
    assert pictures.wanted(page, pictures.blocks("trees", drawn=False)) == ["suffix", "auto"]
    assert pictures.wanted(page, pictures.blocks("head trees")) == ["clover"]


# marks of pages; recipes whose heads do not ship, and modules of checkpoints, have marks of their own
MARK = re.compile(r"<!-- (?:head |module )?trees: ([^\n]*?) -->\n(.*?)<!-- /trees -->", re.DOTALL)
LINE = re.compile(r"<!-- timelines: ([^\n]*?) -->\n")


def test_every_recipe_has_a_picture_or_a_note_below_its_mark() -> None:
    pages = [*(pictures.DOCS / "families").glob("*.md"), pictures.page_of(pictures.REMOTE)]
    texts = [page.read_text() for page in pages]
    shown: set[str] = set()
    for names, below in [found for text in texts for found in MARK.findall(text)]:
        for name in map(str.strip, names.split(",")):
            pictured = f'/{name}.svg"' in below or f"`{name}` draft" in below
            assert pictured, f"{name} is in a mark, but was left out below it"
            shown.add(name)
    lines = {name for text in texts for names in LINE.findall(text) for name in names.split(", ")}
    assert set(RECIPES) - shown - lines == {"plain"}


def test_every_recipe_is_spoken_of_on_a_page() -> None:
    pages = [*(pictures.DOCS / "families").glob("*.md"), pictures.page_of(pictures.REMOTE)]
    text = "".join(MARK.sub("", page.read_text()) for page in pages)
    assert {name for name in RECIPES if f"`{name}`" not in text} == set()

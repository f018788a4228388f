"""The animated picture is what its record says, and a page can show it as an image."""

import json
import xml.etree.ElementTree as ElementTree

from tools import living_tree

RECORD = json.loads(living_tree.RECORD.read_text())
SVG = "{http://www.w3.org/2000/svg}"


def test_the_picture_is_what_the_record_says() -> None:
    assert living_tree.PICTURE.read_text() == living_tree.draw(RECORD), (
        "run python -m tools.living_tree"
    )


def test_the_picture_needs_nothing_else() -> None:
    text = living_tree.PICTURE.read_text()
    tags = {element.tag.removeprefix(SVG) for element in ElementTree.fromstring(text).iter()}
    assert tags == {"svg", "style", "rect", "path", "text", "g"}
    assert "prefers-color-scheme:dark" in text
    assert "prefers-reduced-motion" in text
    assert len(text.encode()) < 200_000


def test_the_text_of_the_picture_is_the_text_of_the_rounds() -> None:
    said = "".join(
        word
        for one in RECORD["rounds"]
        for word in [*(one["tokens"][node] for node in one["path"][1:]), one["bonus"]]
    )
    assert "return list(reversed(input_list))" in said
    rounds = [living_tree.Round(one, 0.0) for one in RECORD["rounds"]]
    drawn = "".join(living_tree.output(rounds, living_tree.Film(9.0, 1.0)))
    shown = "".join(
        element.text or "" for element in ElementTree.fromstring(f"<g>{drawn}</g>").iter()
    )
    assert shown == "".join(said.split())


def test_rounds_follow_each_other_and_keep_what_was_accepted() -> None:
    for one in RECORD["rounds"]:
        made = living_tree.Round(one, 2.0)
        assert 2.0 < made.grown < made.checked < made.lit < made.end
        path = [made.words[made.tree.tokens[node]] for node in made.verdict.path]
        assert path == [one["tokens"][node] for node in one["path"]]
        assert len(made.tree) - 1 <= max(living_tree.MOST, len(path))


def test_lines_are_broken_between_words() -> None:
    text = "one\n" + "ab " * 40
    places = living_tree.wrapped(text)
    assert len(places) == len(text)
    assert places[4] == (1, 0)
    assert max(column for _, column in places) < living_tree.COLUMNS
    starts = [place for letter, place in zip(text, places, strict=True) if letter == "a"]
    ends = [place for letter, place in zip(text, places, strict=True) if letter == "b"]
    assert [(row, column + 1) for row, column in starts] == ends

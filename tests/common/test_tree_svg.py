"""Pictures of trees: well-formed, complete, and readable whatever the tokens are."""

import itertools
from xml.etree import ElementTree

import pytest

from sapwood.common.tree_svg import LONGEST, draw, gallery, label, reaches
from sapwood.core.tree import Tree
from sapwood.core.types import Verdict

SVG = "{http://www.w3.org/2000/svg}"
NASTY = [
    "<b>",
    "&amp;",
    '"',
    "'",
    "]]>",
    "\x00",
    "\ud800",
    "\ufffe",
    "",
    " ",
    "\n",
    "漢字漢字",
    "x" * 99,
    "é",
    "🌳",
]


def bushy(depth: int = 4, width: int = 3) -> tuple[Tree, Verdict]:
    """A tree with forks, of which a path of second children is accepted."""
    tree = Tree(0)
    path = [0]
    level = [0]
    for _ in range(depth):
        level = [
            tree.add(node, token, 0.9 / (token + 1), rank=token)
            for node in level[:3]
            for token in range(width)
        ]
        path.append(tree.children(path[-1])[1] if len(tree.children(path[-1])) > 1 else path[-1])
    return tree, Verdict(tuple(dict.fromkeys(path)), 7)


def boxes(picture: str) -> dict[str, tuple[str, list[float]]]:
    """Kind, and left, top, width and height of each label, by node."""
    found: dict[str, tuple[str, list[float]]] = {}
    for group in ElementTree.fromstring(picture).iter(f"{SVG}g"):
        name = group.get("data-node")
        if name is not None:
            assert name not in found, "drawn once"
            rect = group.find(f"{SVG}rect")
            assert rect is not None
            found[name] = (
                group.get("class") or "",
                [float(rect.get(key) or 0) for key in ("x", "y", "width", "height")],
            )
    return found


@pytest.mark.parametrize("depth", [0, 1, 4])
def test_every_node_is_drawn_once_and_none_on_another(depth: int) -> None:
    tree, verdict = bushy(depth)
    picture = draw(tree, verdict, lambda token: NASTY[token % len(NASTY)])
    found = boxes(picture)
    assert set(found) == {*map(str, range(len(tree))), "bonus"}
    for (_, one), (_, other) in itertools.combinations(found.values(), 2):
        apart = one[0] + one[2] < other[0] or other[0] + other[2] < one[0]
        assert apart or one[1] + one[3] < other[1] or other[1] + other[3] < one[1]


def test_everything_is_inside_the_picture() -> None:
    picture = draw(*bushy(), lambda token: f"word {token}")
    whole = ElementTree.fromstring(picture)
    width, height = float(whole.get("width") or 0), float(whole.get("height") or 0)
    for _, (left, top, wide, high) in boxes(picture).values():
        assert left >= 0
        assert top >= 0
        assert left + wide <= width
        assert top + high <= height


def test_the_accepted_path_is_marked() -> None:
    tree, verdict = bushy()
    assert verdict.accepted > 1
    kinds = {name: kind for name, (kind, _) in boxes(draw(tree, verdict, str)).items()}
    assert kinds.pop("bonus") == "bonus"
    assert kinds.pop("0") == "root"
    assert {int(name) for name, kind in kinds.items() if kind == "accepted"} == {*verdict.path[1:]}
    assert set(kinds.values()) == {"accepted", "refused"}


def test_lines_are_as_thick_as_reach_and_lead_from_parent_to_child() -> None:
    tree, verdict = bushy(2)
    whole = ElementTree.fromstring(draw(tree, verdict, str))
    found = boxes(draw(tree, verdict, str))
    lines = {line.get("data-to"): line for line in whole.iter(f"{SVG}path")}
    assert set(lines) == {*map(str, range(1, len(tree))), "bonus"}
    for node in range(1, len(tree)):
        line = lines[str(node)]
        assert float(line.get("stroke-width") or 0) == pytest.approx(
            1 + 5 * reaches(tree)[node], abs=0.01
        )
        ends = (line.get("d") or "").removeprefix("M").replace("C", " ").split()
        _, (left, top, wide, high) = found[str(int(tree.parents[node]))]
        assert [float(ends[0]), float(ends[1])] == pytest.approx([left + wide, top + high / 2])
        assert float(ends[-2]) == pytest.approx(found[str(node)][1][0])


def test_reach_is_the_policys_where_it_has_one() -> None:
    tree = Tree(0)
    tree.add(tree.add(0, 1, 0.5), 2, 0.4)
    assert reaches(tree) == pytest.approx([1.0, 0.5, 0.2])
    tree.reach[1:], tree.valued = [0.9, 0.8], 3
    assert reaches(tree) == pytest.approx([1.0, 0.9, 0.8])


def test_labels_show_blanks_and_are_short() -> None:
    assert label(" the\n") == "\u00b7the\u23ce"
    assert label("") == "\u2205"
    assert len(label("x" * 99)) == LONGEST
    assert all(label(word).isprintable() for word in NASTY)


def test_it_is_the_same_every_time_and_needs_nothing_else() -> None:
    tree, verdict = bushy()
    picture = draw(tree, verdict, str)
    assert picture == draw(tree, verdict, str)
    assert "href" not in picture
    assert "script" not in picture


def test_several_rounds_stand_below_each_other() -> None:
    tree, verdict = bushy(2)
    picture = gallery([("one & two", tree, verdict), ("plain", Tree(3), Verdict((0,), 4))], str)
    whole = ElementTree.fromstring(picture)
    captions = [text.text for text in whole.iter(f"{SVG}text") if text.get("class") == "caption"]
    assert captions == ["one & two", "plain"]
    tops = [
        float((group.get("transform") or "0 0").split()[1].rstrip(")"))
        for group in whole
        if group.get("transform")
    ]
    assert tops[0] < tops[1] < float(whole.get("height") or 0)
    assert "one & two: a tree of 12 tokens, 2 of them accepted" in (whole.get("aria-label") or "")

"""Suites from files: order, mixture, turns, names and what a fingerprint covers."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapwood.bench.prompts import RandomPrompt
from sapwood.bench.suites import (
    BenchPrompt,
    digest,
    gather,
    groups,
    interleave,
    open_suite,
    read_content,
    read_later,
    shortened,
    spread,
)
from sapwood.core.types import BackendInfo
from sapwood.errors import SapwoodError
from tests.helpers import byte_tokenizer

TEXT = byte_tokenizer.text()


def prompt(name: str, category: str = "c", task: str = "") -> BenchPrompt:
    return BenchPrompt(name, category, task or category, name)


marks = st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("xy")), max_size=12)


# ---------------------------------------------------------------------------------------- mixture
@given(marks)
def test_spreading_keeps_every_prompt_and_the_order_within_a_task(
    made: list[tuple[str, str]],
) -> None:
    prompts = [prompt(str(at), one, one + two) for at, (one, two) in enumerate(made)]
    found = list(spread(prompts))
    assert Counter(found) == Counter(prompts)
    for task in {each.task for each in prompts}:
        names = [int(each.name) for each in found if each.task == task]
        assert names == sorted(names)


@given(marks, st.integers(0, 12))
def test_every_beginning_is_as_even_as_can_be(made: list[tuple[str, str]], count: int) -> None:
    prompts = [prompt(str(at), one, one + two) for at, (one, two) in enumerate(made)]
    have = Counter(each.category for each in prompts)
    taken = Counter(each.category for each in list(spread(prompts))[:count])
    for one in have:
        for other in have:
            # a category is behind another by more than one only where it is used up
            assert taken[one] >= min(have[one], taken[other] - 1)


def test_weaving_takes_from_each_in_turn() -> None:
    one, two = [prompt("a"), prompt("b"), prompt("c")], [prompt("x")]
    assert [each.name for each in interleave([one, two])] == ["a", "x", "b", "c"]
    assert list(interleave([])) == []


def test_groups_come_in_the_order_of_their_words() -> None:
    made = [prompt("1", "b"), prompt("2", "a"), prompt("3", "b")]
    found = groups(made, lambda each: each.category)
    assert [[each.name for each in some] for some in found] == [["1", "3"], ["2"]]


# ------------------------------------------------------------------------------------------ lines
@pytest.mark.parametrize(
    ("record", "content", "later"),
    [
        ({"turns": ["a", "b", "c"]}, "a", ("b", "c")),
        ({"turns": ["a"], "prompt": "p"}, "a", ()),
        ({"turns": [], "prompt": "p"}, "p", ()),
        ({"prompt": "p", "messages": []}, "p", ()),
        ({"messages": [{"role": "user"}], "turns": ["a", "b"]}, [{"role": "user"}], ()),
        ({"turns": [3, "b"]}, None, ("b",)),
        ({"turns": ["a", ""]}, "a", None),
        ({"turns": "a"}, None, ()),
        ({"messages": "hello"}, None, ()),
    ],
)
def test_what_is_asked_first_and_later(
    record: dict[str, Any], content: Any, later: tuple[str, ...] | None
) -> None:
    assert read_content(record) == content
    assert read_later(record) == later


def test_lines_are_counted_as_an_editor_counts_them(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_bytes(b'\n{"prompt": "one"}\r\n\n  \n{"prompt": "two\\u2028"}')
    assert [one.name for one in open_suite(str(path))] == ["mine.jsonl:2", "mine.jsonl:5"]


def test_a_file_may_be_named_with_a_comma_or_from_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a,b.jsonl"
    path.write_text('{"prompt": "one"}')
    assert [one.name for one in gather(str(path))] == ["a,b.jsonl:1"]
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "c.jsonl").write_text('{"prompt": "two"}')
    assert [one.category for one in gather("~/c.jsonl")] == ["c"]


def test_a_folder_is_no_suite(tmp_path: Path) -> None:
    with pytest.raises(SapwoodError, match="is no file that can be read, and not built in"):
        gather(str(tmp_path))


def test_turns_are_cut() -> None:
    talk = BenchPrompt("p", "c", "c", "a", ("b", "c", "d"))
    assert [shortened(talk, turns).later for turns in (1, 2, 9)] == [(), ("b",), ("b", "c", "d")]
    assert shortened(talk, None) is talk


# ----------------------------------------------------------------------------------------- tokens
def test_a_prompt_is_read_through_the_chat_template() -> None:
    info = BackendInfo("toy", "toy", TEXT.size, 200)
    words = BenchPrompt("p", "c", "c", "hello").tokens(info, TEXT)
    talk = BenchPrompt("p", "c", "c", [{"role": "user", "content": "hello"}]).tokens(info, TEXT)
    assert words == talk
    assert TEXT.show(words) == "<bos><user>hello<bot>"


def test_words_need_a_tokenizer() -> None:
    info = BackendInfo("toy", "toy", 5, 200)
    with pytest.raises(SapwoodError, match=r"^prompt p: "):
        BenchPrompt("p", "c", "c", "hello").tokens(info, None)
    assert BenchPrompt("p", "c", "c", RandomPrompt(1, 4)).tokens(info, None) == RandomPrompt(
        1, 4
    ).tokens(5)


# ------------------------------------------------------------------------------------ fingerprint
def test_the_fingerprint_covers_words_categories_turns_and_order() -> None:
    one = [BenchPrompt("p", "c", "t", "a", ("b",)), BenchPrompt("q", "c", "t", RandomPrompt(1, 8))]
    base = digest(one)
    assert len(base) == 16
    assert digest(one[::-1]) != base
    changed = [
        BenchPrompt("p", "d", "t", "a", ("b",)),
        BenchPrompt("p", "c", "t", "A", ("b",)),
        BenchPrompt("p", "c", "t", "a", ()),
        BenchPrompt("p", "c", "t", "a", ("b", "c")),
    ]
    assert len({base, *(digest([each, one[1]]) for each in changed)}) == 5
    assert digest([one[0], BenchPrompt("q", "c", "t", RandomPrompt(1, 9))]) != base
    assert digest([BenchPrompt("other name", "c", "t", "a", ("b",)), one[1]]) == base


def test_a_suite_is_the_same_wherever_its_file_lies(tmp_path: Path) -> None:
    records = [{"prompt": "one", "category": "x"}, {"turns": ["two", "three"], "category": "y"}]
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        lines = "\n".join(json.dumps(record) for record in records)
        (tmp_path / folder / "s.jsonl").write_text(lines)
    first, second = (gather(str(tmp_path / folder / "s.jsonl")) for folder in ("a", "b"))
    assert first == second
    assert digest(first) == digest(second)


@pytest.mark.parametrize(
    ("suite", "limit", "published"),
    [
        ("random", None, "ef5c083476fb7abd"),
        ("chat,copy,edit,random", 6, "43fe3f0ace50bd1d"),
        ("chat,copy,edit", 9, "0942ab1de41df32c"),
    ],
)
def test_built_in_suites_are_those_of_the_published_records(
    suite: str, limit: int | None, published: str
) -> None:
    assert digest(gather(suite, limit=limit)) == published

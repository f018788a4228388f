"""Draws by key, user turns that are whole, and tasks that are made of passages."""

import json
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapwood.core.rng import path_key, uniforms
from sapwood.errors import SapwoodError
from sapwood.train import prompts
from sapwood.train.prompt_templates import ASKED, OPENINGS, PASSAGES, QUESTIONS, SENTENCES
from sapwood.train.prompts import (
    GRAM,
    REPEATS,
    SHORTEST,
    ChatFrame,
    KeyedDraws,
    PassageLibrary,
    choose,
    derive,
    finished,
    gather,
    library,
    mark,
    messages,
    repeats_itself,
)
from tests.helpers import byte_tokenizer

TEXT = byte_tokenizer.text()
FRAME = ChatFrame.of(TEXT, "tiny")


# ------------------------------------------------------------------------------------------ draws
def test_draws_are_those_of_their_key() -> None:
    first, second = KeyedDraws(1, 2, 3), KeyedDraws(1, 2, 3)
    found = [first.number() for _ in range(64)]
    assert found == [second.number() for _ in range(64)]
    assert sorted(found) == sorted(uniforms(path_key([1, 2, 3]), 64))
    assert found != [KeyedDraws(1, 2, 4).number() for _ in range(64)]
    assert first.left == 0
    assert KeyedDraws(1, count=5).left == 5


def test_one_of_several_is_drawn_evenly_and_by_weight() -> None:
    even = Counter(KeyedDraws(n).one("abcd") for n in range(2000))
    assert all(400 < count < 600 for count in even.values())
    weights = {"a": 1.0, "b": 3.0, "c": 0.0}
    found = Counter(
        KeyedDraws(n).weighted(list(weights), lambda item: weights[item]) for n in range(2000)
    )
    assert found["c"] == 0
    assert found["b"] / 2000 == pytest.approx(0.75, abs=0.04)


@given(st.floats(0, 1), st.floats(0, 1), st.integers(0, 500))
def test_a_turn_begins_with_an_opening_of_the_right_kind(
    opened: float, long: float, key: int
) -> None:
    place = KeyedDraws(key).number()
    found = choose(KeyedDraws(key), opened, long)
    assert bool(found.words) == (place < opened)
    assert found.long == (place < min(opened, long))
    assert found.words == "" or found in OPENINGS


# ------------------------------------------------------------------------------------------ turns
@given(st.text("ab .?!\n", max_size=30), st.booleans())
def test_a_turn_is_whole_sentences_or_nothing(words: str, ended: bool) -> None:
    found = finished(words, ended)
    assert found == found.strip()
    assert found == "" or len(found) >= SHORTEST
    assert found in words
    if found and not ended:
        assert found[-1] in ".?!" or words[words.index(found) + len(found)] in " \n"


@pytest.mark.parametrize("length", [GRAM - 1, GRAM, GRAM + 1, 50])
def test_a_text_without_repetition_does_not_run_in_circles(length: int) -> None:
    assert not repeats_itself(list(range(length)))
    assert repeats_itself(list(range(length)) * (REPEATS + 1)) == (length + REPEATS > GRAM)


# ---------------------------------------------------------------------------------------- passages
def test_questions_are_found_among_turns() -> None:
    turns = ["What is it?", "Say it.", "First\nWhat?", "x" * 200 + "?", "Why?"]
    assert library([["text"]], turns).questions == ["What is it?", "Why?"]
    assert library([["text"]], ["Say it."]).questions == ASKED


def test_every_shelf_is_taken_as_often_as_the_others() -> None:
    books = PassageLibrary([["one"], [" two "] * 50, []], ())
    found = Counter(books.piece(KeyedDraws(n)) for n in range(1000))
    assert set(found) == {"one", "two"}
    assert 420 < found["one"] < 580


@given(st.integers(0, 300), st.integers(20, 500))
def test_a_passage_is_no_longer_than_its_room(key: int, room: int) -> None:
    books = PassageLibrary([[f"Text number {n} says a thing." for n in range(9)]], ())
    passage = gather(books, KeyedDraws(key), TEXT, room)
    assert 0 < len(TEXT.encode(passage, whole=False)) <= room
    assert passage.startswith("Text number ")
    pieces = passage.split("\n")
    assert len(set(pieces)) == len(pieces)


def test_a_passage_does_not_end_in_half_a_letter() -> None:
    books = PassageLibrary([["äöü" * 40]], ())
    for key in range(30):
        passage = gather(books, KeyedDraws(key), TEXT, 60)
        assert "\ufffd" not in passage
        assert set(passage) <= set("äöü")


def test_tasks_come_in_their_shares() -> None:
    long = "This sentence has some length. So does this other sentence."
    books = library([[long]], ["Who is it really?"])
    tasks = [derive(books, KeyedDraws(4, n), TEXT, 200) for n in range(800)]
    forms = {
        kind: [task.form.partition("{")[0] for task in some if not task.form.startswith("{")]
        for kind, some in (("passage", PASSAGES), ("question", QUESTIONS), ("sentence", SENTENCES))
    }
    sentences = sum(any(task.startswith(head) for head in forms["sentence"]) for task in tasks)
    assert sentences / 800 == pytest.approx(0.25, abs=0.05)
    assert sum("Who is it really?" in task for task in tasks) / 800 == pytest.approx(
        0.35 * 0.8, abs=0.06
    )
    assert tasks == [derive(books, KeyedDraws(4, n), TEXT, 200) for n in range(800)]


def test_texts_without_a_sentence_of_some_length_make_no_task_of_sentences() -> None:
    books = library([["Short. Too. No."]], [])
    tasks = [derive(books, KeyedDraws(n), TEXT, 100) for n in range(60)]
    assert "" in tasks
    assert any(tasks)


# ------------------------------------------------------------------------------------------- files
@pytest.mark.parametrize(
    ("row", "found"),
    [
        ({"prompt": "a"}, [("user", "a")]),
        ({"turns": ["a", "b"]}, [("user", "a"), ("user", "b")]),
        (
            {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "a"}]},
            [("system", "s"), ("user", "a")],
        ),
        (
            {"turns": ["a", {"role": "assistant", "content": "x"}]},
            [("user", "a")],
        ),
        ({"prompt": "a", "turns": ["b"]}, [("user", "a")]),
    ],
)
def test_a_line_is_a_conversation_up_to_its_last_user(
    row: dict[str, object], found: list[tuple[str, str]]
) -> None:
    assert [(one["role"], one["content"]) for one in messages(json.dumps(row))] == found


def test_a_file_is_known_again_by_its_content(tmp_path: Path) -> None:
    one, two = tmp_path / "a", tmp_path / "b"
    one.write_text("same")
    two.write_text("same")
    assert mark(one) == mark(two) is not None
    two.write_text("other")
    assert mark(one) != mark(two)
    assert mark(None) is None
    with pytest.raises(SapwoodError, match=r"the prompts file .* cannot be read"):
        mark(tmp_path / "none")


def test_a_byte_that_is_not_utf8_is_named_by_its_line(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_bytes(b'{"prompt": "a"}\n\n{"prompt": "\xff"}\n')
    with pytest.raises(SapwoodError, match=r"line 3 of .* is not UTF-8 \(byte 29\)"):
        list(prompts.lines(path))


def test_words_are_put_into_the_frame() -> None:
    [one, two] = FRAME.prompts(["hello", " x "])
    assert TEXT.show(one.tokens) == "<bos><user>hello<bot>"
    assert (one.words, two.words) == ("hello", " x ")
    assert TEXT.show(FRAME.opening) == "<bos><user>"

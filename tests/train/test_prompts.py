"""Prompts of a file, of templates, of passages; bad lines are named."""

import json
from pathlib import Path

import pytest

from sapwood.errors import SapwoodError
from sapwood.tokenizer.tokenizer import Tokenizer
from sapwood.train import prompts as prompting
from sapwood.train.prompt_templates import OPENINGS, PASSAGES, QUESTIONS, SENTENCES
from sapwood.train.prompts import (
    ChatFrame,
    KeyedDraws,
    choose,
    derive,
    finished,
    library,
    repeats_itself,
)
from tests.helpers import byte_tokenizer as words


def framed(template: str = words.TEMPLATE) -> ChatFrame:
    return ChatFrame.of(
        Tokenizer(words.tokenizer(), template, (words.EOS,), specials={"bos_token": "<bos>"}),
        "tiny",
    )


def test_a_template_is_taken_apart() -> None:
    frame = framed("<user>be kind <user>{{ messages[0].content | trim }}<eos><bot>")
    assert (frame.head, frame.tail, frame.trims) == ("<user>be kind <user>", "<eos><bot>", True)
    assert frame.ends == [words.EOS]
    [prompt] = frame.prompts(["  hi "])
    assert prompt.words == "hi"
    assert list(prompt.tokens) == frame.text.chat([{"role": "user", "content": "  hi "}])
    assert not framed().trims
    assert framed().ends == [words.EOS, 259]
    for template, wrong in (
        (None, "no chat template"),
        ("{{ messages[0].content | upper }}", "changes the user's words"),
    ):
        with pytest.raises(SapwoodError, match=wrong):
            ChatFrame.of(Tokenizer(words.tokenizer(), template), "tiny")


def test_prompts_of_a_file(tmp_path: Path) -> None:
    chat = [{"role": "user", "content": "one"}, {"role": "assistant", "content": "two"}]
    rows = [
        {"prompt": "Wie?", "source": "x"},
        {
            "messages": [
                *chat,
                {"role": "user", "content": "three"},
                {"role": "assistant", "content": "gone"},
            ]
        },
        {"turns": ["first", "second"]},
        {"prompt": "x" * 100},
        {"messages": [{"role": "user", "content": "Wie?"}]},
    ]
    path = tmp_path / "p.jsonl"
    path.write_text(
        "\ufeff" + "\n\n".join(json.dumps(row) for row in rows) + "\n", encoding="utf-8"
    )
    frame = framed()
    found = prompting.read(path, frame, 50)
    assert [prompt.words for prompt in found.items] == ["Wie?", "three", "second"]
    assert (found.long, found.repeated) == (1, 1)
    asked = frame.text.chat([*chat, {"role": "user", "content": "three"}])
    assert list(found.items[1].tokens) == asked
    with pytest.raises(SapwoodError, match="at most 2 tokens"):
        prompting.read(path, frame, 2)


@pytest.mark.parametrize(
    ("row", "wrong"),
    [
        ('{"prompt": "x"', "is not JSON"),
        ("[" * 100000, "is not JSON"),
        ("[1]", "no JSON object"),
        ('"prompt"', "no JSON object"),
        ('{"text": "x"}', "no JSON object"),
        ('{"prompt": 3}', "without text"),
        ('{"prompt": ["x"]}', "wrong kind"),
        ('{"messages": "x"}', "wrong kind"),
        ('{"prompt": "  "}', "without text"),
        ('{"messages": [{"role": "user"}]}', "without text"),
        ('{"messages": [{"role": "assistant", "content": "x"}]}', "without a user message"),
        ('{"turns": []}', "without a user message"),
        ('{"prompt": "\\ud800"}', "not valid Unicode"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, row: str, wrong: str) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text(f'{{"prompt": "good"}}\n{row}\n')
    with pytest.raises(SapwoodError, match=rf"line 2 of .*p\.jsonl .*{wrong}") as caught:
        prompting.read(path, framed(), 100)
    assert "\n" not in str(caught.value)


def test_a_line_the_template_refuses_is_named(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text('{"prompt": "good"}\n{"turns": ["a", "b"]}\n')
    strict = framed(
        "{% if messages | length > 1 %}{{ raise_exception('no') }}{% endif %}" + words.TEMPLATE
    )
    with pytest.raises(SapwoodError, match=r"line 2 of .*refuses"):
        prompting.read(path, strict, 100)


@pytest.mark.parametrize(
    ("data", "wrong"), [(b"\n \n", "holds no prompts"), (b'{"prompt": "\xff"}', "not UTF-8")]
)
def test_a_bad_file_is_named(tmp_path: Path, data: bytes, wrong: str) -> None:
    path = tmp_path / "p.jsonl"
    path.write_bytes(data)
    with pytest.raises(SapwoodError, match=wrong):
        prompting.read(path, framed(), 100)
    with pytest.raises(SapwoodError, match="cannot be read"):
        prompting.read(tmp_path / "none", framed(), 100)


def test_openings_come_in_their_shares() -> None:
    chosen = [choose(KeyedDraws(1, n), 0.5, 0.125) for n in range(4000)]
    assert sum(bool(one.words) for one in chosen) / 4000 == pytest.approx(0.5, abs=0.03)
    assert sum(one.long for one in chosen) / 4000 == pytest.approx(0.125, abs=0.02)
    assert {one.words for one in chosen} == {"", *(one.words for one in OPENINGS)}
    assert not any(one.words for one in (choose(KeyedDraws(2, n), 0.0, 0.125) for n in range(50)))
    assert 60 <= len(OPENINGS) == len({one.words for one in OPENINGS})
    assert not any(one.words.endswith(" ") for one in OPENINGS), (
        "a blank belongs to the word after it"
    )


def test_turns_are_whole_and_do_not_run_in_circles() -> None:
    assert finished(" What is a tree? ", True) == "What is a tree?"
    assert finished("What is a tree? And wh", False) == "What is a tree?"
    assert (
        finished("What is a tree and wh", False)
        == finished("Hm?", True)
        == finished("bad \ufffd bytes", True)
        == ""
    )
    assert repeats_itself(list(range(20)) * 3)
    assert not repeats_itself(list(range(20)) * 2)
    assert not repeats_itself([1] * 21)
    assert repeats_itself([1] * 22)


def test_tasks_are_made_of_passages() -> None:
    texts = [
        f"Text number {n} {{question}} says a thing. It says another thing, too." for n in range(40)
    ]
    books = library([texts, ["Another shelf holds this sentence."]], ["Who is it?", "Say it."])
    assert books.questions == ["Who is it?"]
    tasks = [derive(books, KeyedDraws(5, n), words.text(), 400) for n in range(300)]
    assert all(
        len(task) < 700 and "{passage}" not in task and "{sentence}" not in task for task in tasks
    )
    starts = [task.form.partition("{")[0] for task in (*PASSAGES, *QUESTIONS, *SENTENCES)]
    assert all(any(task.startswith(start) for task in tasks) for start in starts)
    assert sum("Who is it?" in task for task in tasks) > 40
    assert max(map(len, tasks)) > 300
    assert all(form.form.count("{passage}") == 1 for form in (*PASSAGES, *QUESTIONS))

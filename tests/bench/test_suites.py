"""Which prompts a benchmark runs."""

import json
from pathlib import Path
from typing import Any

import pytest

from sapwood.backends.toy import ToyBackend
from sapwood.bench.prompts import BUILT_IN, RandomPrompt
from sapwood.bench.suites import MT_BENCH, digest, gather
from sapwood.errors import SapwoodError


def write(path: Path, *records: Any) -> str:
    path.write_text("\n".join(json.dumps(record) for record in records))
    return str(path)


@pytest.fixture
def spec(tmp_path: Path) -> str:
    """A file in Spec-Bench's form: two tasks of MT-bench, ten of rag, one of qa."""
    tasks = ["writing"] * 3 + ["coding"] * 3 + ["rag"] * 10 + ["qa"]
    records = [
        {"question_id": n, "category": task, "turns": [f"{task} {n}", "more"]}
        for n, task in enumerate(tasks)
    ]
    return write(tmp_path / "spec.jsonl", *records)


def test_the_first_turn_is_the_prompt(spec: str) -> None:
    assert gather(spec)[0].content == "writing 0"


def test_every_form_is_read(tmp_path: Path) -> None:
    talk = [{"role": "user", "content": "hello"}]
    suite = write(
        tmp_path / "mine.jsonl",
        {"prompt": "one"},
        {"messages": talk, "category": "talk"},
        {"turns": ["two"]},
    )
    found = gather(suite)
    assert [(prompt.category, prompt.content) for prompt in found] == [
        ("mine", "one"),
        ("talk", talk),
        ("mine", "two"),
    ]
    assert [prompt.name for prompt in found] == ["mine.jsonl:1", "mine.jsonl:2", "mine.jsonl:3"]


def test_mt_bench_is_one_category(spec: str) -> None:
    assert {prompt.category for prompt in gather(spec)} == {"mt_bench", "rag", "qa"}
    assert len(MT_BENCH) == 8


def test_limit_spreads_over_categories_then_tasks(spec: str) -> None:
    names = [f"{prompt.category}/{prompt.task}" for prompt in gather(spec, limit=7)]
    first = ["mt_bench/writing", "rag/rag", "qa/qa"]
    assert names == [*first, "mt_bench/coding", "rag/rag", "mt_bench/writing", "rag/rag"]


def test_a_smaller_limit_is_the_beginning_of_a_larger_one(spec: str) -> None:
    assert gather(spec, limit=5) == gather(spec)[:5]


def test_categories_by_reported_or_own_name(spec: str) -> None:
    assert {prompt.task for prompt in gather(spec, ["coding"])} == {"coding"}
    assert {prompt.task for prompt in gather(spec, ["mt_bench", "qa"])} == {
        "writing",
        "coding",
        "qa",
    }


def test_files_and_built_in_suites_combine(spec: str) -> None:
    assert {prompt.category for prompt in gather(f"copy,{spec}, random")} == {
        "copy",
        "mt_bench",
        "rag",
        "qa",
        "random",
    }


@pytest.mark.parametrize("name", BUILT_IN)
def test_built_in_suites_are_the_same_every_time(name: str) -> None:
    assert digest(gather(name)) == digest(gather(name))
    assert len({repr(prompt.content) for prompt in gather(name)}) >= 6


def test_edit_names_a_variable_of_its_listing() -> None:
    for prompt in gather("edit"):
        assert isinstance(prompt.content, str)
        old = prompt.content.split("`")[1]
        assert prompt.content.count(old) > 5


def test_noise_fits_the_vocabulary() -> None:
    tokens = RandomPrompt(1, 500).tokens(7)
    assert set(tokens) == set(range(7))
    assert gather("random")[0].tokens(ToyBackend(vocab=9, context=100).info, None) == RandomPrompt(
        300, 64
    ).tokens(9)


def test_a_prompt_that_does_not_fit_is_named() -> None:
    with pytest.raises(SapwoodError, match=r"prompt random:1: the prompt has 64 tokens"):
        gather("random")[0].tokens(ToyBackend(context=20).info, None)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"{oops", "not JSON"),
        (b'"a text"', "not a prompt"),
        (b"{}", "not a prompt"),
        (b'{"turns": []}', "not a prompt"),
        (b'{"prompt": ""}', "not a prompt"),
        (b'{"prompt": 3}', "not a prompt"),
        (b'{"messages": ["hello"]}', "not a prompt"),
        (b'{"prompt": "x", "category": 3}', "category 3"),
        (b'{"prompt": "\xff"}', "not JSON \\(not UTF-8 at byte 12\\)"),
        (b"[" * 100_000, "not JSON"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: bytes, reason: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_bytes(b'{"prompt": "fine"}\n\n' + line + b"\n")
    with pytest.raises(SapwoodError, match=rf"line 3 of \S*bad.jsonl .*{reason}") as caught:
        gather(str(path))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("suite", "categories", "limit", "reason"),
    [
        ("nowhere.jsonl", [], None, r"'nowhere.jsonl' is no file .*: copy, edit, random, chat"),
        ("", [], None, "holds no prompts"),
        (
            "copy,edit",
            ["rag"],
            None,
            "category 'rag' is not in suite 'copy,edit'; it has: copy, edit",
        ),
        ("copy", [], 0, "limit=0 must be at least 1"),
    ],
)
def test_what_cannot_be_gathered(
    suite: str, categories: list[str], limit: int | None, reason: str
) -> None:
    with pytest.raises(SapwoodError, match=reason):
        gather(suite, categories, limit)

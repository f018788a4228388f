"""Traces: what is recorded is what happened, it reads back, and it can be looked at in a terminal."""

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from sapwood.cli.main import main
from sapwood.errors import SapwoodError
from sapwood.llm import LLM
from sapwood.trace.read import read
from sapwood.trace.rounds import Trace
from sapwood.trace.view import pages, show_pages, walk
from tests.helpers import byte_tokenizer
from tests.helpers.byte_model import save_byte_model
from tests.helpers.trace_records import LIVELY, PROMPTS, record, trace_target


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAPWOOD_CACHE", str(tmp_path))
    monkeypatch.setattr("sapwood.engine.cost_profiler.QUICK_S", 0.0)


@pytest.mark.parametrize(
    ("recipe", "heat"), [("auto", 0.0), ("recycling", 0.0), ("suffix", 0.8), ("plain", 0.0)]
)
def test_a_traced_run_says_what_any_run_says(recipe: str, heat: float, tmp_path: Path) -> None:
    _, outs, trace = record(tmp_path / "t.jsonl", recipe, max_tokens=16, temperature=heat, seed=3)
    for place, (prompt, out) in enumerate(zip(PROMPTS, outs, strict=True)):
        fresh = LLM(trace_target(), "plain", text=byte_tokenizer.text()).generate(
            prompt, max_tokens=16, temperature=heat, seed=3
        )
        assert out.tokens == fresh.tokens
        assert out.text == fresh.text
        assert trace.answer(place)[: trace.kept_tokens(place)] == out.tokens
        assert trace.ended[place].text == out.text
        assert trace.ended[place].stats == out.stats.to_json()
        assert len(trace.of(place)) == out.stats.passes


def test_rounds_hold_trees_laws_and_times(tmp_path: Path) -> None:
    llm, _, trace = record(tmp_path / "t.jsonl", LIVELY, max_tokens=16)
    assert trace.header.info == llm.target.info
    assert trace.header.spelling == str(llm.recipe)
    assert trace.header.drafters == ["recycling"]
    assert any(one.verdict.accepted for one in trace.rounds)
    for one in trace.rounds:
        tree = one.tree
        assert one.probs.tokens.shape == (len(tree), 10)
        assert [int(tree.tokens[node]) for node in one.verdict.path[1:]] + [
            one.verdict.bonus
        ] == one.tokens
        for node in one.verdict.path[
            1:
        ]:  # at temperature 0 an accepted token is the best of its place
            assert one.ranks[node] == 0
        for node in range(1, len(tree)):
            above = int(tree.parents[node])
            mine = int(tree.tokens[node])
            best = one.probs.tokens[above].tolist()
            if mine in best:
                assert one.logps[node] == pytest.approx(
                    one.probs.logps[above][best.index(mine)], abs=1e-4
                )
                assert best.index(mine) == one.ranks[node]
            else:
                assert one.ranks[node] >= 10
        assert one.times.verify > 0
    assert trace.of(0)[0].context == len(trace.asked[0].tokens) - 1


def test_what_was_cut_is_kept_too(tmp_path: Path) -> None:
    _, _, trace = record(
        tmp_path / "t.jsonl",
        "recycling + beam(beam=4) + match + fixed(nodes=3, depth=3, width=3)",
        max_tokens=12,
    )
    assert any(len(one.grown) > len(one.checked) for one in trace.rounds)
    for one in trace.rounds:
        assert len(one.tree) == len(one.checked) <= 4


def test_a_compressed_trace_reads_back(tmp_path: Path) -> None:
    _, _, plain = record(tmp_path / "t.jsonl", "pld", max_tokens=8, prompts=PROMPTS[:1])
    _, _, packed = record(tmp_path / "t.jsonl.gz", "pld", max_tokens=8, prompts=PROMPTS[:1])
    assert plain.answer(0) == packed.answer(0)
    assert (tmp_path / "t.jsonl.gz").stat().st_size < (tmp_path / "t.jsonl").stat().st_size


def test_the_words_of_a_trace_need_no_model(tmp_path: Path) -> None:
    _, outs, trace = record(tmp_path / "t.jsonl", "pld", max_tokens=8)
    assert "".join(map(trace.spell, trace.asked[0].tokens)).endswith("hello there hello there<bot>")
    assert all(token in trace.words for one in trace.rounds for token in one.grown.tokens.tolist())
    assert [trace.spell(token) for token in outs[0].tokens] == [
        byte_tokenizer.text().spell(token) for token in outs[0].tokens
    ]


# ------------------------------------------------------------------------------------- broken files
def test_an_interrupted_trace_reads_up_to_its_last_whole_line(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    _, _, whole = record(path, "pld", max_tokens=8)
    text = path.read_text()
    path.write_text(text[: text.rindex('"verdict"')])  # in the middle of the last round
    cut = read(path)
    assert len(whole.rounds) - 1 == len(cut.rounds) > 0


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("", "holds no rounds"),
        ("nonsense\n", "line 1"),
        ('{"kind": "round"}\n', "header of version 1"),
        ('{"kind": "header", "version": 7}\n', "header of version 1"),
        ('{"kind": "header", "version": 1}\n', "is missing"),
        ("[1]\n", "line 1"),
    ],
)
def test_what_is_no_trace_is_refused_in_one_sentence(
    content: str, sentence: str, tmp_path: Path
) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(content)
    with pytest.raises(SapwoodError, match=sentence):
        read(path)


def test_a_line_of_another_kind_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    record(path, "pld", max_tokens=4, prompts=PROMPTS[:1])
    path.write_text(path.read_text() + '{"kind": "song"}\n')
    with pytest.raises(SapwoodError, match="'song' is not known"):
        read(path)
    with pytest.raises(SapwoodError, match="cannot be read"):
        read(tmp_path / "none.jsonl")


# ------------------------------------------------------------------------------------- the terminal
def shown(trace: Trace, **options: Any) -> str:
    console = Console(file=io.StringIO(), width=140, **options)
    show_pages(pages(trace, range(len(trace.asked))), console, ask=lambda _: "q")
    file: Any = console.file
    return str(file.getvalue())


def test_the_view_tells_what_became_of_every_node(tmp_path: Path) -> None:
    _, _, trace = record(tmp_path / "t.jsonl", LIVELY, max_tokens=16, prompts=PROMPTS[:1])
    text = shown(trace)
    assert text.count("· round ") == len(trace.rounds)
    assert text.count("the target's own\n") >= len(trace.rounds)
    assert "rank 1" in text
    assert "recycling" in text
    nodes = sum(len(one.grown) - 1 for one in trace.rounds)
    assert text.count("  q ") == nodes


def test_accepted_nodes_are_green_and_refused_ones_red(tmp_path: Path) -> None:
    _, _, trace = record(tmp_path / "t.jsonl", LIVELY, max_tokens=24)
    best = max(range(len(trace.rounds)), key=lambda place: trace.rounds[place].verdict.accepted)
    one = trace.rounds[best]
    console = Console(
        file=io.StringIO(),
        width=140,
        force_terminal=True,
        color_system="standard",
        legacy_windows=False,
    )
    console.print(pages(trace, range(3))[best].render())
    file: Any = console.file
    lines = file.getvalue().splitlines()
    green = [line for line in lines if "\x1b[1;32m" in line and "  q " in line]
    red = [line for line in lines if "\x1b[31m" in line and "  q " in line]
    assert len(green) == one.verdict.accepted > 0
    assert len(red) == len(one.checked) - 1 - one.verdict.accepted


def test_pages_are_leafed_through() -> None:
    wishes: Iterator[str] = iter(["", "b", "b", "3", "99", "", ""])
    assert list(walk(4, lambda _: next(wishes))) == [0, 1, 0, 0, 2, 3]
    assert list(walk(4, lambda _: "q")) == [0]

    def nobody(_: str) -> str:
        raise EOFError

    assert list(walk(4, nobody)) == [0]


# ------------------------------------------------------------------------------------- the commands
@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder: Path = tmp_path_factory.mktemp("model")
    save_byte_model(folder)
    return str(folder)


def test_run_records_and_the_text_stays_the_same(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "t.jsonl"
    options = ["run", "hello", "--model", model, "--max-tokens", "12", "--recipe", "recycling"]
    assert main([*options, "--json"]) == 0
    expected = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert main([*options, "--trace", str(path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["tokens"] == expected["tokens"]
    trace = read(path)
    assert trace.answer(0)[:12] == expected["tokens"]
    assert trace.header.model == model
    assert main(["trace", "view", str(path)]) == 0
    assert "round 1 of" in capsys.readouterr().out
    assert main(["trace", "html", str(path)]) == 0
    assert "sapwood" in path.with_suffix(".html").read_text()


def test_a_suite_is_recorded(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "t.jsonl"
    options = [
        "--suite",
        "chat",
        "--limit",
        "2",
        "--max-tokens",
        "6",
        "--model",
        model,
        "--recipe",
        "pld",
    ]
    assert main(["trace", "record", str(path), *options]) == 0
    trace = read(path)
    assert [asked.name for asked in trace.asked] == ["chat:1", "chat:2"]
    assert [trace.kept_tokens(place) for place in range(2)] == [6, 6]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["view", "none.jsonl"], "cannot be read"),
        (["html", "none.jsonl", "/nowhere/x.html"], "cannot be written"),
        (["record", "/nowhere/t.jsonl"], "cannot be written"),
        (["record", "t.jsonl", "--top", "0"], "top=0"),
        (["record", "t.jsonl", "--suite", "nothing"], "suite 'nothing'"),
    ],
)
def test_bad_wishes_are_refused(
    arguments: list[str],
    sentence: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["trace", *arguments]) == 2
    assert sentence in capsys.readouterr().err


def test_a_prompt_that_is_not_there_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record(tmp_path / "t.jsonl", "pld", max_tokens=4, prompts=PROMPTS[:1])
    assert main(["trace", "view", str(tmp_path / "t.jsonl"), "--prompt", "2"]) == 2
    assert "prompts 1 to 1" in capsys.readouterr().err


def test_numbers_that_are_not_finite_survive() -> None:
    from sapwood.trace.rounds import numbers, read_numbers

    given = [0.5, -np.inf, -3.25]
    assert numbers(given, 9) == [0.5, None, -3.25]
    assert read_numbers(numbers(given, 9)).tolist() == given
    assert read_numbers([[1.0, None], [2.0, 3.0]]).tolist() == [[1.0, -np.inf], [2.0, 3.0]]

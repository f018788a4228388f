"""Runs are written down as they come; an interrupted benchmark goes on where it was."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sapwood.backends.toy import ToyBackend
from sapwood.bench import runner
from sapwood.bench.journal import Journal, read_lines, read_run, run_record
from sapwood.bench.measure import BenchRun, decode
from sapwood.bench.sweep import SweepPoint
from sapwood.cli import options
from sapwood.cli.main import main
from sapwood.core.sampling import Sampling
from sapwood.engine.loop import Engine
from sapwood.errors import SapwoodError
from sapwood.llm import LLM
from sapwood.recipes import resolve

TOY: Any = ToyBackend(vocab=5, context=200)
PROMPT = [0, 1, 2, 0, 1, 2, 0, 1]
GIVEN = ["--recipes", "pld,recycling", "--suite", "random", "--limit", "3", "--max-tokens", "6"]


@pytest.fixture(autouse=True)
def _toy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SAPWOOD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(options.ModelChoice, "open", lambda self, progress: LLM(TOY, "plain"))


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """What is really run: controller and length of prompt."""
    seen: list[tuple[str, int]] = []

    def counted(engine: Engine, prompt: list[int], sampling: Sampling) -> BenchRun:
        seen.append((str(engine.recipe), sampling.max_tokens))
        return decode(engine, prompt, sampling)

    monkeypatch.setattr(runner, "decode", counted)
    return seen


def test_a_run_survives_being_written_down() -> None:
    for recipe in ("recycling", "pld"):
        run = decode(Engine(TOY, resolve(recipe)), PROMPT * 3, Sampling(max_tokens=20))
        again = read_run(json.loads(json.dumps(run_record(run), allow_nan=False)))
        assert np.array_equal(again.reliability.sums, run.reliability.sums)
        assert run_record(again) == run_record(run)
        assert (again.tokens, again.seconds) == (run.tokens, run.seconds)
        assert np.isnan(again.expected) == np.isnan(run.expected)
        assert again.sample == run.sample
    assert run_record(BenchRun())["sample"] is None


def test_every_run_has_a_line_with_its_origin(
    tmp_path: Path, decoded: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "bench.json"
    monkeypatch.setattr("sys.argv", ["sapwood", "bench", *GIVEN])
    assert main(["bench", *GIVEN, "--json", str(path)]) == 0
    lines = [json.loads(line) for line in (tmp_path / "bench.runs.jsonl").read_text().splitlines()]
    assert len(lines) == 9
    assert len(decoded) == 12  # three of them to warm up
    for line in lines:
        assert line["point"] == asdict(SweepPoint())
        assert len(line["run"]["tokens"]) == 6
        origin = line["origin"]
        assert origin["command"].startswith("sapwood bench ")
        assert {"commit", "machine", "model"} <= origin.keys()
        assert {"cpu", "sapwood", "python"} <= origin["machine"].keys()
        assert "fingerprint" in origin["model"]
    assert len({line["series"] for line in lines}) == 1


def interrupted_after(monkeypatch: pytest.MonkeyPatch, runs: int) -> None:
    whole = vars(runner)["decode"]
    count = iter(range(100))

    def stopped(*given: Any) -> BenchRun:
        if next(count) == runs:
            raise KeyboardInterrupt
        run: BenchRun = whole(*given)
        return run

    monkeypatch.setattr(runner, "decode", stopped)


def test_an_interrupted_run_goes_on(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    decoded: list[tuple[str, int]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "bench.json"
    runs = tmp_path / "some.jsonl"
    where = ["--json", str(path), "--runs", str(runs)]
    with monkeypatch.context() as patch:
        interrupted_after(patch, 3 + 5)  # three to warm up, five counted
        assert main(["bench", *GIVEN, *where]) == 130
    out, err = capsys.readouterr()
    assert f"5 runs are kept in {runs}, --resume goes on from there" in err.replace("\n", " ")
    assert len(runs.read_text().splitlines()) == 5
    first = json.loads(path.read_text())
    assert {row["prompts"] for row in first["rows"] if row["category"] == "all"} == {
        1
    }  # all three answered one
    assert "recycling" in out
    done = len(decoded)
    assert main(["bench", *GIVEN, *where, "--resume"]) == 0
    assert len(decoded) - done == 3 + 4  # warmed up again; four of nine were left
    assert len(runs.read_text().splitlines()) == 9
    assert " of 7 runs, about " in capsys.readouterr().err
    second = {(row["recipe"], row["category"]): row for row in json.loads(path.read_text())["rows"]}
    assert second["recycling", "all"]["prompts"] == second["recycling", "all"]["identical"] == 3
    assert main(["bench", *GIVEN, *where, "--resume"]) == 0
    assert len(decoded) - done == 7  # nothing was left to do
    third = {(row["recipe"], row["category"]): row for row in json.loads(path.read_text())["rows"]}
    assert third == second


def test_other_prompts_are_another_series(tmp_path: Path, decoded: list[Any]) -> None:
    runs = ["--runs", str(tmp_path / "some.jsonl")]
    assert main(["bench", *GIVEN, *runs]) == 0
    done = len(decoded)
    assert main(["bench", *GIVEN, "--seed", "3", *runs, "--resume"]) == 0
    assert len(decoded) - done == 12
    assert main(["bench", *GIVEN, *runs]) == 0  # without --resume all is run again
    assert len(decoded) - done == 24
    lines = list(read_lines(tmp_path / "some.jsonl"))
    assert len(lines) == 27
    assert len({line["series"] for line in lines}) == 3


def test_a_line_that_was_cut_off_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "cut.jsonl"
    point = SweepPoint()
    journal = Journal(path, "mark")
    journal.add((point, "a", "plain"), BenchRun(tokens=[1, 2]))
    journal.add((point, "b", "plain"), BenchRun(tokens=[3]))
    path.write_bytes(path.read_bytes()[:-20])
    again = Journal(path, "mark", resume=True)
    assert list(again.done) == [(point, "a", "plain")]
    assert again.series == journal.series
    assert Journal(path, "other", resume=True).done == {}
    assert Journal(tmp_path / "nowhere", "mark", resume=True).done == {}


@pytest.mark.parametrize(
    ("part", "name", "change"),
    [
        ("run", "sample", dict.pop),
        ("run", "expected", dict.pop),
        ("run", "later", lambda record, name: record.update({name: 1})),
        ("point", "later", lambda record, name: record.update({name: 1})),
    ],
)
def test_runs_of_another_version_are_refused(
    part: str, name: str, change: Any, tmp_path: Path
) -> None:
    path = tmp_path / "runs.jsonl"
    journal = Journal(path, "mark")
    journal.add((SweepPoint(), "a", "plain"), BenchRun(tokens=[1, 2]))
    line = json.loads(path.read_text())
    change(line[part], name)
    path.write_text(json.dumps(line) + "\n")
    with pytest.raises(
        SapwoodError, match=f"runs.jsonl were written by another .*{name}.*--resume"
    ):
        Journal(path, "mark", resume=True)
    assert Journal(path, "mark").done == {}

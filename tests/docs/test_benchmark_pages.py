"""docs/benchmarks.md is what the committed records say, and each of its tables can be made again."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from tools import benchmarks
from tools.benchmark_tables import RESULTS, again

from sapwood.backends.toy import ToyBackend
from sapwood.cli import options
from sapwood.cli.main import main
from sapwood.llm import LLM


def test_the_page_is_what_the_records_say() -> None:
    assert (benchmarks.ROOT / benchmarks.PAGE).read_text() == benchmarks.page(), (
        "run python -m tools.benchmarks"
    )


def test_every_table_and_picture_has_its_command() -> None:
    sections = re.split(r"^## ", benchmarks.page(), flags=re.MULTILINE)[
        2:
    ]  # the first is an overview
    assert len(sections) >= 6
    for section in sections:
        assert re.search(
            r"Made by:\n\n```\n(SAPWOOD_CPU=avx2 )?(sapwood bench|python \S+\.py|python -m \S+) ",
            section,
        ), section.splitlines()[0]
        assert "| --- |" in section or "![" in section
        assert "/tmp" not in section


def test_every_record_is_on_the_page() -> None:
    text = benchmarks.page()
    for path in (benchmarks.ROOT / RESULTS).iterdir():
        assert path.name in text, f"{path.name} is not shown"


def test_commands_write_to_where_the_file_is_kept() -> None:
    command = "sapwood bench --suite /a/b/spec.jsonl --json /x/y.json --html /x/r.html --recipes 'a + b(c=1)'"
    assert again(command, "kept.json") == (
        "sapwood bench --suite spec.jsonl --json benchmarks/results/kept.json --html r.html --recipes 'a + b(c=1)'"
    )


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with the record and the journal of one small benchmark."""
    toy: Any = ToyBackend(vocab=5, context=200)
    (tmp_path / "docs").mkdir()
    results = tmp_path / "benchmarks" / "results"
    results.mkdir(parents=True)
    monkeypatch.setenv("SAPWOOD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(options.ModelChoice, "open", lambda self, progress: LLM(toy, "plain"))
    given = [
        "--suite",
        "random",
        "--limit",
        "3",
        "--max-tokens",
        "8",
        "--json",
        str(results / "peers.json"),
    ]
    assert main(["bench", "--recipes", "pld", *given, "--peers", "openai:http://127.0.0.1:9"]) == 0
    monkeypatch.setattr(benchmarks, "ROOT", tmp_path)
    return tmp_path


def test_numbers_come_from_the_record_and_from_its_runs(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert benchmarks.main(["--check"]) == 1
    assert "docs/benchmarks.md differs" in capsys.readouterr().err
    assert benchmarks.main([]) == 0
    assert benchmarks.main(["--check"]) == 0
    text = (project / benchmarks.PAGE).read_text()
    record = json.loads((project / RESULTS / "peers.json").read_text())
    [row] = [row for row in record["rows"] if (row["recipe"], row["category"]) == ("pld", "all")]
    spread = f"{row['speedup']:.2f} | {row['speedup_low']:.2f} to {row['speedup_high']:.2f}"
    assert text.count(spread) == 2  # from the record, and once more from the runs
    assert "| `pld` | temperature 0 | 3 | 24 |" in text
    assert (
        "`openai:http://127.0.0.1:9` was skipped: http://127.0.0.1:9/v1/models cannot be reached"
        in text
    )
    (project / RESULTS / "peers.runs.jsonl").unlink()
    assert benchmarks.main(["--check"]) == 1

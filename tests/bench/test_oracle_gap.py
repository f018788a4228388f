"""Regret against one who knew the text."""

import json
from pathlib import Path
from typing import Any

import pytest

from sapwood.backends.toy import ToyBackend
from sapwood.bench.conversations import ConversationTurn
from sapwood.bench.oracle_gap import best, pace, with_oracle_regret
from sapwood.bench.rows import ReportRow
from sapwood.bench.suites import BenchPrompt
from sapwood.cli import options
from sapwood.cli.main import main
from sapwood.core.tree import Tree
from sapwood.core.types import Outcome, StageTimes, Verdict
from sapwood.llm import LLM
from sapwood.trace.replay import ReplayRun

ASKED = [
    ConversationTurn(BenchPrompt(name, category, category, "x"), 0, [1], "")
    for name, category in (("a", "one"), ("b", "two"))
]


def run(*seconds: float) -> ReplayRun:
    """One round of so many seconds for each prompt, four tokens each."""
    scores: Any = None
    made = [
        [Outcome(Tree(0), Tree(0), Verdict((0,), 1), scores, 1, StageTimes(verify=spent))]
        for spent in seconds
    ]
    return ReplayRun("r", "text", made, [4] * len(made))


def test_the_best_size_of_each_category_counts() -> None:
    plain = run(4.0, 4.0)
    assert pace(plain, [0]) == 1.0
    gains = best(plain, [run(2.0, 8.0), run(4.0, 2.0)], ASKED)
    assert gains == {"one": 2.0, "two": 2.0, "all": pytest.approx(8 / 6)}
    assert best(plain, [run(8.0, 8.0)], ASKED) == {
        "one": 1.0,
        "two": 1.0,
        "all": 1.0,
    }  # it may also do nothing


def test_regret_is_what_the_oracle_would_have_gained() -> None:
    row = ReportRow("pld", "one", 1, speedup=1.25)
    assert with_oracle_regret(row, {"one": 2.0}).oracle_regret == pytest.approx(0.6)
    assert with_oracle_regret(row, {}).oracle_regret is None
    assert (
        with_oracle_regret(
            ReportRow("pld", "one", 1, speedup=1.25, temperature=1.0), {"one": 2.0}
        ).oracle_regret
        is None
    )


def test_the_command_asks_the_oracle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toy: Any = ToyBackend(vocab=5, context=200)
    monkeypatch.setenv("SAPWOOD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(options.ModelChoice, "open", lambda self, progress: LLM(toy, "plain"))
    path = tmp_path / "bench.json"
    given = ["--suite", "random", "--limit", "2", "--max-tokens", "16", "--json", str(path)]
    assert main(["bench", "--recipes", "pld,suffix", *given, "--oracle"]) == 0
    rows = {(row["recipe"], row["category"]): row for row in json.loads(path.read_text())["rows"]}
    assert rows["plain", "all"]["oracle_regret"] is None
    for name in ("pld", "suffix"):
        row = rows[name, "all"]
        assert (
            row["oracle_regret"] >= 1 / row["speedup"] - 1 - 1e-9
        )  # the oracle gains at least nothing
    assert main(["bench", "--recipes", "pld", *given]) == 0
    assert {row["oracle_regret"] for row in json.loads(path.read_text())["rows"]} == {None}

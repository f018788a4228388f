"""The comparison of heads: equal sizes, every kind trained and scored, and going on where it was."""

import dataclasses
import json
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from benchmarks.head_runs import merged
from benchmarks.heads import (
    NO_HEADS,
    TREES,
    HeadsSettings,
    compare,
    inner_for,
    kinds_of,
    parameters,
    settings_of,
    sized,
)

from benchmarks import heads
from sapwood.common import drafter_store
from sapwood.heads import files
from sapwood.train.loop import LoopSettings
from sapwood.train.registry import OBJECTIVES
from tests.helpers import byte_tokenizer
from tests.helpers.head_training import corpus, teacher
from tests.helpers.train_runs import counter

WANTED = 30_000


def test_heads_of_every_kind_have_about_the_wanted_size(tmp_path: Path) -> None:
    guide = teacher(torch.float32)
    counts = corpus().counts(guide.vocab)
    settings = HeadsSettings(tmp_path, parameters=WANTED, vocabulary=48)
    for kind in kinds_of(settings):
        made = sized(kind, guide, counts, settings)
        names = {field.name for field in dataclasses.fields(made)}
        found = parameters(made.build(guide, counts))
        if names & set(heads.SIZED):
            assert found == pytest.approx(WANTED, rel=0.1), kind
        else:
            assert found < WANTED, kind


def test_the_size_is_computed_right_without_an_output_matrix() -> None:
    guide = teacher(torch.float32)
    probe = torch.nn.ModuleDict(
        {
            "a": torch.nn.Linear(heads.PROBE["inner"], heads.PROBE["inner"]),
            "b": torch.nn.Linear(10, heads.PROBE["inner"], bias=False),
            heads.OUTPUT: torch.nn.Linear(1000, 1000),
        }
    )
    assert guide.width not in (heads.PROBE["inner"],)
    assert inner_for(probe, 64 * 64 + 64 + 640) == 64


def small(tmp_path: Path, **changes: Any) -> HeadsSettings:
    model = tmp_path / "model"
    if not model.is_dir():
        counter().save_pretrained(model)
        byte_tokenizer.save(model)
    settings = HeadsSettings(
        tmp_path / "work",
        model=str(model),
        kinds=("medusa", "hidden-transfer", "early-exit"),
        minutes=0.01,
        parameters=20_000,
        vocabulary=200,
        texts=600,
        suite="chat",
        limit=2,
        max_tokens=12,
        batch=256,
        device="cpu",
        dtype="float32",
        threads=1,
    )
    return dataclasses.replace(settings, **changes)


def test_every_kind_is_trained_and_scored_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SAPWOOD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("sapwood.engine.cost_profiler.QUICK_S", 0.0)
    monkeypatch.setattr(heads, "LoopSettings", lambda **given: LoopSettings(**given, log=5))
    said: list[str] = []
    settings = small(tmp_path)
    record = compare(settings, said.append)
    assert [row["kind"] for row in record["rows"]] == list(settings.kinds)
    for row in record["rows"]:
        assert set(row["tokens_per_pass"]) == set(TREES)
        double = record["target_passes_per_round"][row["kind"]]
        assert all(value >= 1 / double for value in row["tokens_per_pass"].values())
        assert row["steps"] > 0
        assert row["curve"][-1][1] == row["loss"]
        assert (
            row["bytes"]
            == (settings.work / row["kind"] / files.BLOCK)
            .with_name("model.safetensors")
            .stat()
            .st_size
        )
    json.dumps(record)
    assert record["commit"] is None or isinstance(record["commit"], str)
    assert str(tmp_path) not in record["command"].replace(settings.model, "MODEL")
    # again: nothing is trained, and one more kind alone is
    said.clear()
    more = compare(small(tmp_path, kinds=("medusa", "clover"), install=True), said.append)
    assert [text.split()[1] for text in said if text.startswith("training")] == ["clover"]
    assert more["rows"][0] == record["rows"][0]
    # both are the model's own parts now
    assert [text for text in said if text.startswith("installed")] == [
        "installed medusa",
        "installed clover",
    ]
    assert drafter_store.has("clover", settings.model)


def test_a_kind_that_fails_is_named_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SAPWOOD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("sapwood.engine.cost_profiler.QUICK_S", 0.0)
    real = heads.sized

    def broken(kind: str, *rest: Any) -> Any:
        if kind == "hydra":
            raise RuntimeError("no such kernel")
        return real(kind, *rest)

    monkeypatch.setattr(heads, "sized", broken)
    path = tmp_path / "record.json"
    settings = small(tmp_path, kinds=("hydra", "medusa"), minutes=0.002, limit=1)
    record = compare(settings, lambda _: None, path)
    assert [row["kind"] for row in record["rows"]] == ["medusa"]
    assert record["missing"] == {"hydra": "RuntimeError: no such kernel"}
    assert json.loads(path.read_text()) == record
    # mended, it is trained and scored, and no longer missing
    monkeypatch.setattr(heads, "sized", real)
    record = compare(settings, lambda _: None)
    assert [row["kind"] for row in record["rows"]] == ["hydra", "medusa"]
    assert not record["missing"]


def test_the_time_is_shared_equally(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = HeadsSettings(tmp_path, minutes=5.0, limit_seconds=400.0, score_seconds=100.0)
    monkeypatch.setattr("benchmarks.heads.time.monotonic", lambda: heads.STARTED + 60.0)
    assert settings.left == 340.0
    assert heads.share_of_time(settings, 10) == pytest.approx((24 - heads.BETWEEN) / 60)
    assert heads.share_of_time(settings, 1) == pytest.approx((240 - heads.BETWEEN) / 60)
    assert heads.share_of_time(dataclasses.replace(settings, minutes=0.1), 10) == 0.1
    assert heads.share_of_time(HeadsSettings(tmp_path, minutes=5.0), 10) == 5.0


class Inside:
    """A scoring process, run in this one; the first takes a tree of a kind and never ends."""

    made: ClassVar[list["Inside"]] = []
    killed: ClassVar[int] = 0

    def __init__(self, words: list[str]) -> None:
        self.settings, _, self.alone = settings_of(words)
        self.first = not self.made
        self.made.append(self)
        self.code: int | None = None
        # the model is loaded while the texts are written; nothing is scored before all is trained
        assert not heads.trained_file(self.settings).is_file()

    def poll(self) -> int | None:
        if heads.trained_file(self.settings).is_file():
            if self.first:
                heads.claimed(self.settings, "medusa", "chain of 4")
            else:
                heads.score_all(self.settings, lambda _: None, shared=True)
                self.code = 0
        return self.code

    def kill(self) -> None:
        type(self).killed += 1

    def wait(self) -> None:
        pass


def test_several_processes_score_and_the_limit_ends_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SAPWOOD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("sapwood.engine.cost_profiler.QUICK_S", 0.0)
    small(tmp_path)  # makes the model
    words = f"--work {tmp_path / 'work'} --model {tmp_path / 'model'} --device cpu --dtype float32"
    words += " --threads 1 --kinds medusa,clover --minutes 0.002 --parameters 20000 --texts 600"
    words += " --vocabulary 200 --suite chat --limit 1 --max-tokens 8 --batch 256 --workers 2"
    words += " --limit-seconds 100000 --score-seconds 0"
    monkeypatch.setattr("sys.argv", ["heads.py", *words.split()])
    monkeypatch.setattr(heads, "started", Inside)
    monkeypatch.setattr(heads, "WAIT", 0.0)
    settings, _, _ = settings_of(words.split())
    looked = 0

    def left(_: HeadsSettings) -> float:
        nonlocal looked
        looked += heads.trained_file(settings).is_file()
        return 90_000.0 if looked < 12 else 0.0

    monkeypatch.setattr(HeadsSettings, "left", property(left))
    record = compare(settings, lambda _: None)
    assert [one.alone for one in Inside.made] == [True, True]
    assert [row["kind"] for row in record["rows"]] == ["clover"]
    assert record["missing"] == {"medusa": "unfinished"}
    assert Inside.killed == 1


def test_rows_of_a_later_run_are_added_and_say_so() -> None:
    def run(commit: str, scores: dict[str, float], missing: dict[str, str]) -> dict[str, Any]:
        return {
            "command": f"run {commit}",
            "commit": commit,
            "machine": {},
            "model": {},
            "texts": {},
            "prompts": {"count": 8},
            "target_passes_per_round": dict.fromkeys(scores, 1),
            "rows": [{"kind": kind, "score": score} for kind, score in scores.items()],
            "missing": missing,
        }

    first = run("a", {"eagle": 1.8, "medusa": 1.7}, {"owl": "unfinished", "moa": "unfinished"})
    both = merged(first, run("b", {"eagle": 1.9, "owl": 1.5}, {"moa": "no time was left"}))
    assert [(row["kind"], row["run"]) for row in both["rows"]] == [
        ("eagle", 0),
        ("medusa", 0),
        ("owl", 1),
    ]
    assert [(row["kind"], row["score"]) for row in both["repeated"]] == [("eagle", 1.9)]
    assert both["missing"] == {"moa": "no time was left"}
    assert [one["commit"] for one in both["runs"]] == ["a", "b"]
    assert both["commit"] == "a"
    three = merged(both, run("c", {"moa": 1.4}, {}))
    assert [row["run"] for row in three["rows"]] == [0, 0, 1, 2]
    assert len(three["runs"]) == 3
    assert not three["missing"]


def test_all_kinds_of_heads_are_taken_unless_some_are_named(tmp_path: Path) -> None:
    settings, path, _ = settings_of(["--work", str(tmp_path)])
    assert kinds_of(settings) == [kind for kind in OBJECTIVES if kind not in NO_HEADS]
    assert path is None
    settings, path, _ = settings_of(
        ["--work", str(tmp_path), "--kinds", "ctc,eagle", "--json", "x.json", "--minutes", "0.3"]
    )
    assert kinds_of(settings) == ["ctc", "eagle"]
    assert (path, settings.minutes) == (Path("x.json"), 0.3)

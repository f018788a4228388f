"""The table of methods on any machine: what fails or hangs is left out, and the time is kept."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.methods import SturdyContender, assembled, contained, main

from benchmarks import methods
from sapwood.bench.measure import BenchRun
from sapwood.bench.runner import RecipeContender
from sapwood.core.sampling import Sampling
from sapwood.errors import SapwoodError
from sapwood.llm import LLM
from sapwood.recipes import resolve
from tests.helpers.byte_model import save_byte_model


def test_any_error_becomes_the_one_that_drops_a_recipe() -> None:
    with pytest.raises(SapwoodError, match=r"^RuntimeError: no such kernel$"), contained(5.0):
        raise RuntimeError("no  such\nkernel")
    with pytest.raises(SapwoodError, match=r"^a sentence$"), contained(5.0):
        raise SapwoodError("a sentence")
    with contained(5.0):
        pass


def test_what_hangs_is_ended() -> None:
    with pytest.raises(SapwoodError, match=r"took more than 0\.05 s"), contained(0.05):
        time.sleep(5)
    time.sleep(0.06)  # and no alarm is left behind


def test_recipes_that_cannot_be_bound_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    class Odd:
        def with_recipe(self, name: str) -> Any:
            if name != "plain":
                raise RuntimeError("not here")
            return self

        engine = "an engine"

    odd: Any = Odd()
    found = assembled(odd, ["plain", "pld"])
    assert list(found.engines) == ["plain"]
    assert found.skipped == {"pld": "RuntimeError: not here"}


def test_all_temperatures_are_measured_and_failures_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SAPWOOD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("sapwood.engine.cost_profiler.QUICK_S", 0.0)
    save_byte_model(tmp_path / "tiny")
    real = RecipeContender.run

    def run(self: RecipeContender, asked: Any, sampling: Sampling) -> list[BenchRun]:
        if type(self.engine.recipe.drafter).__name__ == "Recycling" and sampling.temperature:
            raise RuntimeError("only cold")
        return real(self, asked, sampling)

    monkeypatch.setattr(RecipeContender, "run", run)
    path = tmp_path / "record.json"
    words = f"--model {tmp_path / 'tiny'} --device cpu --dtype float32 --recipes pld,recycling"
    words += " --temperature 0,1 --suite chat --limit 2 --max-tokens 6 --seconds 300"
    assert main([*words.split(), "--json", str(path)]) == 0
    record = json.loads(path.read_text())
    whole = {
        (row["recipe"], row["temperature"]): row
        for row in record["rows"]
        if row["category"] == "all"
    }
    assert {heat for _, heat in whole} == {0.0, 1.0}
    assert whole["pld", 1.0]["prompts"] == 2
    assert whole["pld", 0.0]["identical"] == 2
    assert "only cold" in whole["recycling", 1.0]["skipped"]
    assert {"command", "commit", "machine", "model"} <= set(record)


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Words that name a small model."""
    monkeypatch.setenv("SAPWOOD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("sapwood.engine.cost_profiler.QUICK_S", 0.0)
    save_byte_model(tmp_path / "tiny")
    return f"--model {tmp_path / 'tiny'} --device cpu --dtype float32 --suite chat --max-tokens 4"


def test_a_recipe_that_has_used_its_share_decodes_one_prompt_of_each_temperature(
    tiny: str, tmp_path: Path
) -> None:
    path = tmp_path / "record.json"
    words = f"{tiny} --recipes pld --warm 0 --temperature 0,1 --limit 3 --recipe-seconds 0"
    assert main([*words.split(), "--json", str(path)]) == 0
    record = json.loads(path.read_text())
    counts = {
        (row["recipe"], row["temperature"]): row["prompts"]
        for row in record["rows"]
        if row["category"] == "all"
    }
    assert counts["pld", 0.0] == counts["pld", 1.0] == 1
    assert counts["plain", 0.0] == counts["plain", 1.0] == 3
    speeds = [row["speedup"] for row in record["rows"] if row["recipe"] == "plain"]
    assert all(abs(value - 1) < 1e-9 for value in speeds)


def test_what_was_measured_when_the_time_is_up_is_written(
    tiny: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = 0

    def tick(_: float) -> Any:
        def count(total: int) -> None:
            nonlocal done
            done += 1
            if done > 7:  # two warm-ups, and two prompts and a half
                raise methods.TimeUp

        return count

    monkeypatch.setattr(methods, "progress", tick)
    path = tmp_path / "record.json"
    words = f"{tiny} --recipes pld --warm 0 --temperature 0,1 --limit 4"
    assert main([*words.split(), "--json", str(path)]) == 0
    rows = json.loads(path.read_text())["rows"]
    assert {(row["temperature"], row["prompts"]) for row in rows if row["recipe"] == "pld"} == {
        (0.0, 2)
    }


def test_the_time_ends_the_runs() -> None:
    tick = methods.progress(time.monotonic() + 60)
    tick(100)
    with pytest.raises(methods.TimeUp):
        methods.progress(time.monotonic() - 1)(100)


def test_every_temperature_has_its_share_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("benchmarks.methods.time.monotonic", lambda: now)
    clock = methods.StageClock(90.0)
    now = 29.0
    assert not clock.past(1 / 3)
    now = 31.0
    assert clock.past(1 / 3)  # recipes that have not begun sit out
    assert not clock.past(2 / 3)
    clock.saved(30.0)  # kept for the record
    now = 41.0
    assert clock.past(2 / 3)


def test_recipes_without_their_parts_and_late_ones_are_left_out(tmp_path: Path) -> None:
    save_byte_model(tmp_path)
    llm = LLM(str(tmp_path), "plain", device="cpu", dtype="float32")
    asked = ["plain", "pld", "sled", "clover", "eagle3", "speculative", "traversal"]
    found = assembled(llm, asked, shipped=True)
    assert list(found.engines) == ["plain", "pld"]
    assert found.skipped["sled"] == "needs a server that drafts"
    assert found.skipped["clover"] == "needs a trained part that is not shipped"
    assert found.skipped["speculative"].startswith("not shipped: ")
    late = assembled(llm, ["pld", "plain"], lambda: True)
    assert list(late.engines) == ["plain"]
    assert late.skipped == {"pld": "no time was left to bind it"}


def test_recipes_of_verifiers_are_bound_first() -> None:
    assert methods.by_importance(["swift", "pld", "block", "plain"]) == [
        "block",
        "plain",
        "pld",
        "swift",
    ]


def test_only_recipes_that_keep_texts_are_bound_anew() -> None:
    keeps = {name: methods.keeps_texts(resolve(name)) for name in ("suffix", "auto", "eagle3")}
    assert keeps == {"suffix": True, "auto": True, "eagle3": False}


def test_a_recipe_that_cannot_be_bound_anew_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    class Odd:  # no dataclass: it cannot be bound anew
        recipe = resolve("suffix")

    engine: Any = Odd()
    monkeypatch.setattr(methods, "say", lambda _: None)
    one = SturdyContender(engine, spent=[1.0])
    assert one.fresh() == SturdyContender(engine)


def test_all_recipes_of_a_head_share_a_builder_that_is_captured_once() -> None:
    class Builder:
        captured = 0

        def on_prepared(self) -> None:
            Builder.captured += 1

    class Target:
        class info:  # noqa: N801
            device = "cuda:0"

        def tree_builder(self, head: object, embedding: object) -> Builder:
            return Builder()

    class Fake:
        target = Target()

    llm: Any = Fake()
    methods.share_builders(llm)
    rows = torch.zeros(2)
    head = object()
    one, two = (llm.target.tree_builder(head, rows) for _ in range(2))
    assert one is two is not llm.target.tree_builder(object(), rows)
    one.on_prepared()
    one.on_prepared()
    assert Builder.captured == 1

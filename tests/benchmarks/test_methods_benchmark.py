"""The table of methods on any machine: what fails or hangs is left out, and the time is kept."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
from benchmarks.methods import SturdyContender, assembled, contained, main

from benchmarks import methods
from sapwood.bench.measure import BenchRun
from sapwood.bench.runner import RecipeContender
from sapwood.core.sampling import Sampling
from sapwood.errors import SapwoodError
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


def test_without_time_the_first_prompt_of_each_temperature_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SAPWOOD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("sapwood.engine.cost_profiler.QUICK_S", 0.0)
    save_byte_model(tmp_path / "tiny")
    path = tmp_path / "record.json"
    words = f"--model {tmp_path / 'tiny'} --device cpu --dtype float32 --recipes pld --warm 0"
    words += " --temperature 0,1 --suite chat --limit 3 --max-tokens 4 --seconds 0"
    assert main([*words.split(), "--json", str(path)]) == 0
    rows = json.loads(path.read_text())["rows"]
    assert {row["prompts"] for row in rows if row["category"] == "all"} == {1}


def test_a_recipe_that_cannot_be_bound_anew_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    engine: Any = object()  # no dataclass: it cannot be bound anew
    monkeypatch.setattr(methods, "say", lambda _: None)
    one = SturdyContender(engine)
    assert one.fresh() is one

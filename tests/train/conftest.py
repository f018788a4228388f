"""Training runs that the files of this folder share."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from sapwood.cli.main import main
from tests.helpers import byte_tokenizer
from tests.helpers.train_runs import FEW_STEPS, STEPS, Place, asked, counter, hurry


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """A tiny model, prompts, and a run of the train command that ended well."""
    root: Path = tmp_path_factory.mktemp("train")
    made = Place(root / "model", root / "prompts.jsonl", root / "data", root / "whole")
    counter().save_pretrained(made.model)
    byte_tokenizer.save(made.model)
    lines = [
        {"prompt": "tell me"},
        {"messages": [{"role": "user", "content": "go on"}]},
        {"prompt": "more"},
    ]
    made.prompts.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.MonkeyPatch.context() as patch:
        hurry(patch)
        assert main(asked(made, "--steps", str(STEPS), "--out", str(made.whole))) == 0
    return made


@pytest.fixture(scope="session")
def short(place: Place, tmp_path_factory: pytest.TempPathFactory) -> Place:
    """The same with the head of a few steps."""
    made = replace(place, whole=tmp_path_factory.mktemp("short"))
    with pytest.MonkeyPatch.context() as patch:
        hurry(patch)
        assert main(asked(made, "--steps", str(FEW_STEPS), "--out", str(made.whole))) == 0
    return made


@pytest.fixture
def quick_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache of its own, no measuring of the machine, and steps without waiting."""
    monkeypatch.setenv("SAPWOOD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("sapwood.engine.cost_profiler.QUICK_S", 0.0)
    monkeypatch.setattr("sapwood.engine.cost_profiler.FULL_S", 0.0)
    hurry(monkeypatch)

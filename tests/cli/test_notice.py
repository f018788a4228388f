"""The line in which `auto` says what it uses."""

from dataclasses import replace
from pathlib import Path

import pytest

from sapwood.backends.torch.load import load, why_slow
from sapwood.cli.main import main
from sapwood.cli.notice import notice
from sapwood.common import drafter_store
from sapwood.engine.cost_model import flat
from sapwood.heads import files
from sapwood.llm import LLM
from sapwood.train.budget import training_minutes
from tests.helpers import byte_tokenizer, tiny_models
from tests.helpers.foreign_heads import foreign_head, six_layer_target


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAPWOOD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("sapwood.engine.cost_profiler.QUICK_S", 0.0)


def said_by(recipe: str = "auto") -> str | None:
    return notice(LLM(six_layer_target(), recipe))


def test_without_a_head_it_says_how_to_make_one() -> None:
    said = said_by()
    assert said is not None
    assert said.startswith("tiny runs in float32; no trained head for this model; ")
    assert "`sapwood train eagle3 --model tiny --minutes 20` makes one, about 20 minutes" in said


def test_with_a_head_it_says_so() -> None:
    files.save(foreign_head(), drafter_store.home("eagle3", "tiny"))
    assert said_by() == "tiny runs in float32; drafts come from its trained head"


def test_hidden_heads_and_other_recipes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAPWOOD_NO_HEADS", "1")
    said = said_by()
    assert said is not None
    assert said.endswith("trained heads are hidden by SAPWOOD_NO_HEADS")
    assert said_by("plain") is None


def test_it_says_why_a_model_is_slow() -> None:
    backend = six_layer_target()
    backend.info = replace(backend.info, why="numba is not installed")
    said = notice(LLM(backend))
    assert said is not None
    assert "in float32, the slow path: numba is not installed; " in said


def test_a_model_of_another_kind_is_slow_for_a_reason(tmp_path: Path) -> None:
    tiny_models.make("gpt2").save_pretrained(tmp_path / "gpt2")
    backend, _ = load(str(tmp_path / "gpt2"), device="cpu")
    assert backend.info.why == "int8 has no layers for the architecture gpt2"
    assert backend.info.weights is not None
    asked, _ = load(str(tmp_path / "gpt2"), device="cpu", dtype="float32")
    assert asked.info.why == ""
    assert why_slow(asked) == backend.info.why


def test_it_is_one_line_on_standard_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "llama"
    tiny_models.make("llama", vocab_size=byte_tokenizer.SIZE).save_pretrained(folder)
    byte_tokenizer.save(folder)
    main(["run", "hello", "--model", str(folder), "--max-tokens", "4", "--dtype", "float32"])
    printed = capsys.readouterr()
    assert printed.err.count("no trained head for this model") == 1
    assert "no trained head" not in printed.out


@pytest.mark.parametrize(("seconds", "minutes"), [(0.001, 20), (0.5, 70)])
def test_a_slow_machine_is_told_more_minutes(seconds: float, minutes: int) -> None:
    assert training_minutes(flat(seconds), six_layer_target().info) == minutes

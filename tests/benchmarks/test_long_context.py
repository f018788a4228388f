"""Long texts: counts and seconds of every recipe beside plain decoding's, in a model that reads them."""

import json
from pathlib import Path
from typing import Any

import pytest
from benchmarks.long_context import RECIPES, main, scaled, speedup, summary
from benchmarks.paired_record import PairedRecord

from benchmarks import long_context
from sapwood.llm import LLM
from tests.helpers.byte_model import save_byte_model

CONTEXT = 512
SHORT = {"plain": "plain", "suffix": "suffix", "sparse-kv": "sparse-kv"}


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SAPWOOD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("sapwood.engine.cost_profiler.QUICK_S", 0.0)
    monkeypatch.setattr(long_context, "RECIPES", SHORT)
    monkeypatch.setattr(long_context, "SUITE", "chat")  # a byte is a token here
    save_byte_model(tmp_path / "tiny", max_position_embeddings=CONTEXT)
    return tmp_path / "tiny"


def test_only_texts_beyond_the_context_are_read_with_a_scaled_embedding(tiny: Path) -> None:
    with scaled(str(tiny), CONTEXT) as model:
        assert model == str(tiny)
    with scaled(str(tiny), 3 * CONTEXT - 1) as model:
        config = json.loads((Path(model) / "config.json").read_text())
        rope = config["rope_parameters"]
        assert (rope["rope_type"], rope["factor"]) == ("yarn", 3.0)
        assert rope["original_max_position_embeddings"] == CONTEXT
        llm = LLM(model, "plain", dtype="float32", device="cpu")
        assert llm.target.info.context == 3 * CONTEXT - 1
        own = {file.name for file in Path(model).iterdir()}
    assert own == {file.name for file in tiny.iterdir()}
    assert not Path(model).exists()


def test_a_record_has_every_recipe_beside_plain_decoding_and_goes_on(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    priced: list[bool] = []
    run = long_context.measured

    def measured(llm: LLM, *given: Any) -> Any:
        priced.append(llm.profile.measured)
        return run(llm, *given)

    monkeypatch.setattr(long_context, "measured", measured)
    path = tmp_path / "r.json"
    words = ["--model", str(tiny), "--contexts", "700", "--tokens", "9", "--json", str(path)]
    assert main([*words, "--prompts", "1", "--dtype", "float32"]) == 0
    record = json.loads(path.read_text())
    rows = {row["recipe"]: row for row in record["rows"]}
    assert list(rows) == list(SHORT)
    assert rows["plain"]["tokens_per_pass"] == 1
    assert rows["plain"]["speedup"] == {"mean": 1.0, "low": 1.0, "high": 1.0}
    assert {row["identical"] for row in rows.values()} == {1}
    assert record["model"]["name"] == str(tiny)
    assert list(record["origins"]) == ["float32"]
    first = record["values"]["float32 700 plain"]["chat:1"]
    assert first[:2] == [9, 9]
    assert first[5] == 8  # the first round is not timed
    assert main([*words, "--prompts", "1", "--dtype", "bfloat16"]) == 0
    both = json.loads(path.read_text())
    assert list(both["origins"]) == ["float32", "bfloat16"]
    assert both["rows"][: len(SHORT)] == record["rows"]
    assert {row["dtype"] for row in both["rows"][len(SHORT) :]} == {"bfloat16"}
    assert priced == [True, True]  # the cost of passes is known to what chooses by it
    monkeypatch.setattr(long_context, "measured", None)  # nothing is left
    assert main([*words, "--prompts", "1", "--dtype", "float32"]) == 0
    assert json.loads(path.read_text()) == both


def values(**seconds: list[float]) -> Any:
    """Values of two prompts: ten tokens each, of which eight are timed."""
    return {
        name: {
            f"long:{number}": [10.0, 5.0, 20.0, 5.0, each, 8.0 if each else 0.0, 1.0]
            for number, each in enumerate(times)
        }
        for name, times in seconds.items()
    }


def test_speed_is_the_mean_ratio_on_the_same_prompts(tmp_path: Path) -> None:
    record = PairedRecord(tmp_path / "r.json", {})
    found = values(plain=[8.0, 16.0], fast=[4.0, 4.0])
    record.values = {f"int8 64 {name}": value for name, value in found.items()}
    plain, fast = summary(record)["rows"]
    assert (plain["recipe"], fast["recipe"]) == ("plain", "fast")
    assert fast["speedup"] == {"mean": 3.0, "low": 2.0, "high": 4.0}
    assert fast["tokens_per_pass"] == 2
    assert fast["accepted_per_node"] == 0.25


def test_an_answer_of_one_round_has_no_speed() -> None:
    found = values(plain=[8.0, 16.0], fast=[0.0, 4.0], faster=[0.0, 0.0])

    def pairs(name: str) -> Any:
        return list(zip(found["plain"].values(), found[name].values(), strict=True))

    assert speedup(pairs("fast")) == {"mean": 4.0, "low": 4.0, "high": 4.0}
    assert speedup(pairs("faster")) is None


def test_plain_decoding_is_among_the_recipes() -> None:
    assert RECIPES["plain"] == "plain"

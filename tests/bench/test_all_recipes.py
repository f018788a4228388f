"""All recipes in one benchmark: each has its row, one that fails leaves the others alone, what was loaded is shared."""

import gc
import json
import os
from pathlib import Path
from typing import Any

import pytest

from sapwood import LLM, SapwoodError
from sapwood.backends.toy import ToyBackend
from sapwood.bench import recipe_set
from sapwood.bench.recipe_set import PLAIN, assemble
from sapwood.cli import options
from sapwood.cli.main import main
from sapwood.common import drafter_store
from sapwood.core.rng import KeyedRng
from sapwood.core.sampling import Sampling
from sapwood.drafters.lookup.ngram import Ngram
from sapwood.engine.loop import Engine
from sapwood.heads import files
from sapwood.heads.load_head import head_for
from sapwood.recipes import RECIPES, resolve
from tests.helpers import tiny_models
from tests.helpers.foreign_heads import PROMPT, foreign_head, six_layer_target

FEW = ("plain", "pld", "recycling")
# plain decoding has the same drafter: both warm up, both decode prompt one, pld begins prompt two
FIFTH = 5
IN_CHECKPOINT = {"mtp", "mtp-tree"}  # their drafter comes with the model
BY_HEAD = "eagle3 + beam(beam=3) + match + fixed(nodes=9, depth=3, width=3)"


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAPWOOD_CACHE", str(tmp_path / "cache"))


def bench(
    monkeypatch: pytest.MonkeyPatch, path: Path, backend: Any, recipes: str, limit: int = 2
) -> tuple[int, dict[str, Any]]:
    """Exit code and rows over all prompts, by recipe, of the command on a backend."""
    monkeypatch.setattr(options.ModelChoice, "open", lambda self, progress: LLM(backend, "plain"))
    given = ["--suite", "random", "--limit", str(limit), "--max-tokens", "4", "--json", str(path)]
    code = main(["bench", "--recipes", recipes, *given])
    rows = json.loads(path.read_text())["rows"] if path.exists() else []
    return code, {row["recipe"]: row for row in rows if row["category"] == "all"}


def test_every_recipe_has_a_row_and_what_is_missing_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, rows = bench(
        monkeypatch, tmp_path / "all.json", tiny_models.backend("llama"), "all", limit=1
    )
    assert code == 0
    assert rows.keys() == RECIPES.keys()
    for name, row in rows.items():
        if RECIPES[name].training == "none":
            assert row["skipped"] is None, name
            assert row["guarantee"] == "lossy" or row["identical"] == row["prompts"] == 1, name
        elif name in IN_CHECKPOINT:
            assert "which the torch backend does not provide for llama" in row["skipped"], name
        else:
            assert row["tokens_per_pass"] is None
            assert "make one with `sapwood train " in row["skipped"], name
            assert "--model llama`" in row["skipped"]


# ------------------------------------------------------------------------------------- failures
@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three recipes are all there are, and the drafter of one of them fails in its second run."""
    monkeypatch.setattr(recipe_set, "RECIPES", {name: RECIPES[name] for name in FEW})
    begun = []

    def reset(self: Any, request: Any) -> None:
        begun.append(request)
        if len(begun) == FIFTH:
            raise SapwoodError("its memory is gone")
        whole(self, request)

    whole = Ngram.reset
    monkeypatch.setattr(Ngram, "reset", reset)


TOY: Any = ToyBackend(vocab=5, context=200)


@pytest.mark.usefixtures("failing")
@pytest.mark.parametrize(
    ("recipes", "expected"), [("all", 0), ("pld,recycling", 2), ("all,pld", 2)]
)
def test_a_recipe_that_fails_leaves_the_others_alone(
    recipes: str,
    expected: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, rows = bench(monkeypatch, tmp_path / "some.json", TOY, recipes)
    out, err = capsys.readouterr()
    assert rows["pld"]["skipped"] == "failed while decoding: its memory is gone"
    assert rows["pld"]["tokens"] is None
    assert rows["recycling"]["identical"] == rows["recycling"]["prompts"] == 2
    assert "pld skipped: failed while decoding" in out
    assert code == expected
    assert ("sapwood: recipe 'pld' failed while decoding: its memory is gone" in err) == (
        expected == 2
    )


def test_without_plain_decoding_there_is_nothing_to_compare_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def reset(self: Any, request: Any) -> None:
        raise SapwoodError("its memory is gone")

    monkeypatch.setattr(Ngram, "reset", reset)
    code, rows = bench(monkeypatch, tmp_path / "none.json", TOY, "recycling")
    assert (code, rows) == (2, {})
    assert "plain decoding failed: its memory is gone" in capsys.readouterr().err


def test_the_time_left_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench(monkeypatch, tmp_path / "some.json", TOY, "pld,recycling")[0] == 0
    told = [line for line in capsys.readouterr().err.splitlines() if " of 9 runs, about " in line]
    assert len(told) == 9
    assert told[-1] == "sapwood: 9 of 9 runs, about 0 s left"


# -------------------------------------------------------------------------------------- sharing
def test_recipes_side_by_side_share_a_draft_model(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[str] = []

    def load(model: str, *_: Any, **__: Any) -> Any:
        loaded.append(model)
        return ToyBackend(vocab=5, context=200), None

    monkeypatch.setattr("sapwood.llm.load", load)
    spellings = [
        f"draft-model(model='other') + {rest} + fixed(nodes=4, depth=4, width=1)"
        for rest in ("chain + match", "best + match")
    ]
    llm = LLM(TOY, "plain")
    made = assemble(llm, {PLAIN: True, **dict.fromkeys(spellings, True)})
    first, second = (made.engines[spelling].recipe.drafter for spelling in spellings)
    assert loaded == ["other"]
    assert first.backend is second.backend  # type: ignore[attr-defined]
    del made, first, second
    gc.collect()
    llm.with_recipe(spellings[0])
    assert loaded == ["other", "other"]  # nobody had it in use any more


def test_recipes_side_by_side_share_a_head() -> None:
    folder = drafter_store.home("eagle3", "tiny")
    files.save(foreign_head(), folder)
    backend = six_layer_target()
    net, _ = head_for(backend, "", "eagle3")
    assert head_for(backend, str(folder), "eagle3")[0] is net
    assert head_for(six_layer_target(), "", "eagle3")[0] is not net  # another model
    os.utime(folder / "model.safetensors", ns=(1, 10**18 * 3))
    assert head_for(backend, "", "eagle3")[0] is not net  # trained anew
    engines = [Engine(backend, resolve(BY_HEAD)) for _ in range(2)]
    first, second = (engine.recipe.drafter.net for engine in engines)  # type: ignore[attr-defined]
    assert first is second


def test_engines_that_share_a_head_do_not_disturb_each_other() -> None:
    files.save(foreign_head(), drafter_store.home("eagle3", "tiny"))
    backend = six_layer_target()
    prompts = [PROMPT, PROMPT[::-1]]

    def rounds(prompt: list[int]) -> Any:
        return Engine(backend, resolve(BY_HEAD)).rounds(
            prompt, Sampling(max_tokens=40), KeyedRng(0)
        )

    alone = [
        [next(running).tree.tokens.tolist() for _ in range(5)] for running in map(rounds, prompts)
    ]
    first, second = map(rounds, prompts)
    in_turn = [
        (next(first).tree.tokens.tolist(), next(second).tree.tokens.tolist()) for _ in range(5)
    ]
    assert [list(trees) for trees in zip(*in_turn, strict=True)] == alone
    assert any(len(tree) > 1 for tree in alone[0])

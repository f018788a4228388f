"""Trained draft models: loaded by name, found for their target."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sapwood.backends.torch.backend import TorchBackend
from sapwood.backends.torch.load import load
from sapwood.common.drafter_store import home
from sapwood.controllers.fixed import Fixed
from sapwood.core.protocols import EngineContext
from sapwood.core.rng import KeyedRng
from sapwood.core.sampling import Sampling
from sapwood.drafters.compose.draft_model import DraftModel
from sapwood.drafters.compose.merge import Merge
from sapwood.drafters.lookup.suffix import Suffix
from sapwood.engine.cost_model import flat
from sapwood.engine.loop import Engine
from sapwood.errors import SapwoodError
from sapwood.policies.beam import Beam
from sapwood.policies.chain import Chain
from sapwood.recipe import Recipe
from sapwood.recipes import resolve
from sapwood.train.draft_model import DraftModelObjective
from sapwood.train.registry import objective
from sapwood.train.teacher import Teacher
from sapwood.verifiers.match import Match
from tests.helpers import tiny_models
from tests.helpers.engine_rounds import rounds_until, tokens_of

# masks are made for the narrower number formats; in double precision their lowest number becomes
# minus infinity
pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered in cast")


PLAIN = Recipe(Suffix(), Chain(), Match(), Fixed(nodes=0))


@pytest.fixture
def drafts(tmp_path: Path) -> list[str]:
    """Folders of two small models for the tiny target."""
    guide = Teacher(tiny_models.backend("llama"))
    folders = [tmp_path / "one", tmp_path / "two"]
    for seed, folder in enumerate(folders):
        torch.manual_seed(seed)
        DraftModelObjective(width=16, heads=2, inner=24).build(guide, np.ones(61, np.int64)).save(
            folder
        )
    return list(map(str, folders))


def load_model(name: str) -> TorchBackend:
    return load(name, device="cpu", dtype="float32")[0]


def test_saved_draft_models_draft(drafts: list[str]) -> None:
    target = tiny_models.backend("llama")
    prompt = [5, 6, 7, 5, 6]
    greedy = Sampling(max_tokens=64)
    merged = Merge(drafters=[DraftModel(model=folder) for folder in drafts])
    plain = tokens_of(rounds_until(target, PLAIN, prompt, 30, greedy))
    for drafter in (DraftModel(model=drafts[0]), merged):
        recipe = Recipe(drafter, Beam(beam=3), Match(), Fixed(nodes=24, depth=3, width=12))
        engine = Engine(target, recipe, load=load_model)
        ours = []
        for outcome in engine.rounds(prompt, greedy, KeyedRng(3)):
            assert len(outcome.tree) > 12
            ours += outcome.tokens
            if len(ours) >= 30:
                break
        assert ours[:30] == plain[:30]


def test_an_empty_model_is_the_one_trained_for_the_target(
    drafts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SAPWOOD_CACHE", str(tmp_path / "cache"))
    setting = EngineContext(tiny_models.backend("llama"), flat(), load_model)
    with pytest.raises(
        SapwoodError,
        match=r"needs a model; write draft-model\(model='NAME'\), or make one with `sapw",
    ):
        DraftModel().bind(setting)
    place = home("draft-model", "llama")
    place.parent.mkdir(parents=True)
    Path(drafts[0]).rename(place)
    drafter = DraftModel()
    drafter.bind(setting)
    assert drafter.backend.info.model == str(place)


@pytest.mark.parametrize("name", ["distillspec", "skd", "fastdraft"])
def test_a_way_of_training_has_a_recipe_that_uses_what_it_makes(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SAPWOOD_CACHE", str(tmp_path / "cache"))
    target = tiny_models.backend("llama")
    with pytest.raises(SapwoodError, match=f"make one with `sapwood train {name} --model llama`"):
        Engine(target, resolve(name), load=load_model)
    made: Any = objective(f"{name}(width=16, heads=2, inner=24)")
    student = made.build(Teacher(target), np.ones(61, np.int64))
    student.save(home(name, "llama"))
    engine = Engine(target, resolve(name), load=load_model)
    greedy = Sampling(max_tokens=64)
    ours: list[int] = []
    for outcome in engine.rounds([5, 6, 7], greedy, KeyedRng(3)):
        assert len(outcome.tree) == 6
        ours += outcome.tokens
        if len(ours) >= 20:
            break
    plain = tokens_of(rounds_until(target, PLAIN, [5, 6, 7], 20, greedy))
    assert ours[:20] == plain[:20]

"""The head that recipes find by themselves: used where there is one, silent where there is none."""

from pathlib import Path
from typing import Any

import pytest

from sapwood.backends.toy import ToyBackend
from sapwood.common import drafter_store
from sapwood.controllers.fixed import Fixed
from sapwood.core.protocols import EngineContext
from sapwood.core.rng import KeyedRng
from sapwood.core.sampling import Sampling
from sapwood.core.types import Draw
from sapwood.drafters.compose.auto_boosted_model import AutoBoostedModel
from sapwood.drafters.compose.auto_draft_model import AutoDraftModel
from sapwood.drafters.compose.draft_model import DraftModel
from sapwood.drafters.compose.merge import Merge
from sapwood.drafters.heads.auto_head import AutoHead
from sapwood.drafters.heads.eagle3 import Eagle3
from sapwood.drafters.lookup.recycling import Recycling
from sapwood.engine.cost_model import flat
from sapwood.engine.loop import Engine, no_loader
from sapwood.heads import files
from sapwood.policies.beam import Beam
from sapwood.recipe import Recipe
from sapwood.verifiers.match import Match
from tests.helpers.foreign_heads import PROMPT, drafted_trees, foreign_head, six_layer_target

LENGTH = 24


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAPWOOD_CACHE", str(tmp_path))


def text_of(drafter: Any, backend: Any, nodes: int, sampling: Sampling) -> list[int]:
    recipe = Recipe(drafter, Beam(beam=3), Match(), Fixed(nodes=nodes, depth=3, width=3))
    text: list[int] = []
    for outcome in Engine(backend, recipe).rounds(PROMPT, sampling, KeyedRng(3)):
        text += outcome.tokens
        if len(text) >= LENGTH:
            break
    return text[:LENGTH]


def test_where_there_is_none_it_proposes_nothing() -> None:
    assert not drafter_store.has("eagle3", "tiny")
    assert all(len(tokens) == 1 for tokens, _ in drafted_trees(AutoHead(), six_layer_target()))
    assert text_of(AutoHead(), ToyBackend(vocab=61), 9, Sampling()) == text_of(
        AutoHead(), ToyBackend(vocab=61), 0, Sampling()
    )


def test_where_there_is_one_it_is_that_drafter() -> None:
    files.save(foreign_head(), drafter_store.home("eagle3", "tiny"))
    assert drafter_store.has("eagle3", "tiny")
    backend = six_layer_target()
    assert drafted_trees(AutoHead(), backend) == drafted_trees(Eagle3(), backend)
    assert any(len(tokens) > 1 for tokens, _ in drafted_trees(AutoHead(), backend))


@pytest.mark.parametrize("draws", [Draw.TOPK, Draw.SWOR])
@pytest.mark.parametrize(
    "sampling", [Sampling(max_tokens=40), Sampling(temperature=0.9, max_tokens=40)], ids=str
)
def test_the_default_merge_says_what_plain_decoding_says(draws: Draw, sampling: Sampling) -> None:
    files.save(foreign_head(), drafter_store.home("eagle3", "tiny"))
    backend = six_layer_target()
    merged = Merge(drafters=[Merge().drafters[0], Recycling(), AutoHead(draws=draws)])
    assert isinstance(Merge().drafters[-1], AutoHead)
    assert text_of(merged, backend, 12, sampling) == text_of(merged, backend, 0, sampling)


def test_it_keeps_its_own_bit_in_a_merged_tree() -> None:
    files.save(foreign_head(), drafter_store.home("eagle3", "tiny"))
    recipe = Recipe(Merge(), Beam(beam=3), Match(), Fixed(nodes=12, depth=3, width=3))
    running = Engine(six_layer_target(), recipe).rounds(
        PROMPT, Sampling(max_tokens=40), KeyedRng(0)
    )
    sources = {int(source) for _ in range(4) for source in next(running).grown.sources}
    running.close()
    assert any(source & 0b10 for source in sources)


def test_where_there_is_none_another_may_draft() -> None:
    assert drafted_trees(AutoHead(otherwise=Recycling()), six_layer_target()) == drafted_trees(
        Recycling(), six_layer_target()
    )


def test_recycling_learns_nothing_while_drafting_rests() -> None:
    backend = six_layer_target()
    seen = Recycling()
    recipe = Recipe(seen, Beam(beam=3), Match(), Fixed(nodes=0))
    engine = Engine(backend, recipe)
    before = engine.recipe.drafter.successors.copy()  # type: ignore[attr-defined]
    running = engine.rounds(PROMPT[:1], Sampling(max_tokens=40), KeyedRng(0))
    for _ in range(4):
        next(running)
    running.close()
    assert (engine.recipe.drafter.successors == before).all()  # type: ignore[attr-defined]


def test_without_a_small_model_the_targets_own_guesses_stand_in() -> None:
    small = AutoDraftModel(draws=Draw.SWOR)
    small.bind(EngineContext(ToyBackend("a"), flat(), no_loader))
    assert isinstance(small.drafter, Recycling)
    assert small.drafter.draws is Draw.SWOR


def test_a_second_model_is_used_where_it_was_trained_and_named_where_not() -> None:
    kept: list[str] = []

    def load(name: str) -> ToyBackend:
        kept.append(name)
        return ToyBackend("draft")

    second = AutoBoostedModel(draws=Draw.IID)
    second.bind(EngineContext(ToyBackend("a"), flat(), load))
    assert isinstance(second.drafter, Recycling)
    assert second.drafter.draws is Draw.IID
    [sentence] = second.substitutes
    assert "there is no boosted draft model" in sentence
    assert "recycling" in sentence
    folder = drafter_store.home("boosted-draft-model", ToyBackend("a").info.model)
    folder.mkdir(parents=True)
    (folder / drafter_store.WEIGHTS).write_bytes(b"")
    second.bind(EngineContext(ToyBackend("a"), flat(), load))
    assert isinstance(second.drafter, DraftModel)
    assert second.drafter.draws is Draw.IID
    assert kept == [str(folder)]
    assert not second.substitutes


def test_a_small_model_that_was_trained_is_used() -> None:
    folder = drafter_store.home("draft-model", ToyBackend("a").info.model)
    folder.mkdir(parents=True)
    (folder / drafter_store.WEIGHTS).write_bytes(b"")
    asked: list[str] = []

    def load(name: str) -> ToyBackend:
        asked.append(name)
        return ToyBackend("draft")

    small = AutoDraftModel(draws=Draw.IID)
    small.bind(EngineContext(ToyBackend("a"), flat(), load))
    assert isinstance(small.drafter, DraftModel)
    assert asked == [str(folder)]
    assert small.drafter.draws is Draw.IID


def test_policies_that_read_laws_find_them_beside_chosen_children() -> None:
    class Reader(Beam):
        reads_probs = True

    for policy in (Reader(beam=2), Beam(beam=2)):
        recipe = Recipe(
            DraftModel(model=ToyBackend("draft")), policy, Match(), Fixed(nodes=4, depth=2, width=2)
        )
        outcome = next(
            Engine(ToyBackend("a"), recipe).rounds([1, 2], Sampling(max_tokens=8), KeyedRng(3))
        )
        inner = {int(parent) for parent in outcome.grown.parents[1:]}
        assert {node for node, _ in outcome.grown.proposals} == (
            inner if policy.reads_probs else set()
        )
        assert all(probs.sum() == pytest.approx(1) for probs in outcome.grown.proposals.values())

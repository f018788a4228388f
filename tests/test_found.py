"""The head that recipes find by themselves: used where there is one, silent where there is none."""

from pathlib import Path
from typing import Any

import pytest

from sapwood import trained
from sapwood.backends.toy import Toy
from sapwood.controllers.fixed import Fixed
from sapwood.cost import flat
from sapwood.drafters.eagle import Eagle
from sapwood.drafters.found import Found
from sapwood.drafters.merge import Merge
from sapwood.drafters.model import Model
from sapwood.drafters.recycling import Recycling
from sapwood.drafters.small import Small
from sapwood.engine import Engine, no_loader
from sapwood.heads import files
from sapwood.policies.beam import Beam
from sapwood.protocols import Setting
from sapwood.recipe import Recipe
from sapwood.records import Draw
from sapwood.rng import Keyed
from sapwood.sampling import Sampling
from sapwood.verifiers.match import Match
from tests.test_foreign_heads import PROMPT, head, target, trees

LENGTH = 24


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAPWOOD_CACHE", str(tmp_path))


def text_of(drafter: Any, backend: Any, nodes: int, sampling: Sampling) -> list[int]:
    recipe = Recipe(drafter, Beam(beam=3), Match(), Fixed(nodes=nodes, depth=3, width=3))
    text: list[int] = []
    for outcome in Engine(backend, recipe).rounds(PROMPT, sampling, Keyed(3)):
        text += outcome.tokens
        if len(text) >= LENGTH:
            break
    return text[:LENGTH]


def test_where_there_is_none_it_proposes_nothing() -> None:
    assert not trained.has("eagle3", "tiny")
    assert all(len(tokens) == 1 for tokens, _ in trees(Found(), target()))
    assert text_of(Found(), Toy(vocab=61), 9, Sampling()) == text_of(Found(), Toy(vocab=61), 0, Sampling())


def test_where_there_is_one_it_is_that_drafter() -> None:
    files.save(head(), trained.home("eagle3", "tiny"))
    assert trained.has("eagle3", "tiny")
    backend = target()
    assert trees(Found(), backend) == trees(Eagle(), backend)
    assert any(len(tokens) > 1 for tokens, _ in trees(Found(), backend))


@pytest.mark.parametrize("draws", [Draw.TOPK, Draw.SWOR])
@pytest.mark.parametrize("sampling", [Sampling(max_tokens=40), Sampling(temperature=0.9, max_tokens=40)], ids=str)
def test_the_default_merge_says_what_plain_decoding_says(draws: Draw, sampling: Sampling) -> None:
    files.save(head(), trained.home("eagle3", "tiny"))
    backend = target()
    merged = Merge(drafters=[Merge().drafters[0], Recycling(), Found(draws=draws)])
    assert isinstance(Merge().drafters[-1], Found)
    assert text_of(merged, backend, 12, sampling) == text_of(merged, backend, 0, sampling)


def test_it_keeps_its_own_bit_in_a_merged_tree() -> None:
    files.save(head(), trained.home("eagle3", "tiny"))
    recipe = Recipe(Merge(), Beam(beam=3), Match(), Fixed(nodes=12, depth=3, width=3))
    running = Engine(target(), recipe).rounds(PROMPT, Sampling(max_tokens=40), Keyed(0))
    sources = {int(source) for _ in range(4) for source in next(running).grown.sources}
    running.close()
    assert any(source & 0b10 for source in sources)


def test_where_there_is_none_another_may_draft() -> None:
    assert trees(Found(otherwise=Recycling()), target()) == trees(Recycling(), target())


def test_recycling_learns_nothing_while_drafting_rests() -> None:
    backend, seen = target(), Recycling()
    recipe = Recipe(seen, Beam(beam=3), Match(), Fixed(nodes=0))
    engine = Engine(backend, recipe)
    before = engine.recipe.drafter.successors.copy()  # type: ignore[attr-defined]
    running = engine.rounds(PROMPT[:1], Sampling(max_tokens=40), Keyed(0))
    for _ in range(4):
        next(running)
    running.close()
    assert (engine.recipe.drafter.successors == before).all()  # type: ignore[attr-defined]


def test_without_a_small_model_the_targets_own_guesses_stand_in() -> None:
    small = Small(draws=Draw.SWOR)
    small.bind(Setting(Toy("a"), flat(), no_loader))
    assert isinstance(small.drafter, Recycling)
    assert small.drafter.draws is Draw.SWOR


def test_a_small_model_that_was_trained_is_used() -> None:
    folder = trained.home("draft-model", Toy("a").info.model)
    folder.mkdir(parents=True)
    (folder / trained.WEIGHTS).write_bytes(b"")
    asked: list[str] = []

    def load(name: str) -> Toy:
        asked.append(name)
        return Toy("draft")

    small = Small(draws=Draw.IID)
    small.bind(Setting(Toy("a"), flat(), load))
    assert isinstance(small.drafter, Model)
    assert asked == [str(folder)]
    assert small.drafter.draws is Draw.IID


def test_policies_that_read_laws_find_them_beside_chosen_children() -> None:
    class Reader(Beam):
        reads_laws = True

    for policy in (Reader(beam=2), Beam(beam=2)):
        recipe = Recipe(Model(model=Toy("draft")), policy, Match(), Fixed(nodes=4, depth=2, width=2))
        outcome = next(Engine(Toy("a"), recipe).rounds([1, 2], Sampling(max_tokens=8), Keyed(3)))
        inner = {int(parent) for parent in outcome.grown.parents[1:]}
        assert {node for node, _ in outcome.grown.laws} == (inner if policy.reads_laws else set())
        assert all(law.sum() == pytest.approx(1) for law in outcome.grown.laws.values())

"""The search for layers to skip: better on the same text, kept on disk, paid off by resting."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sapwood.controllers.fixed import Fixed
from sapwood.core.protocols import EngineContext
from sapwood.core.rng import KeyedRng
from sapwood.core.sampling import Sampling
from sapwood.core.tree import Tree
from sapwood.drafters.self.self_skip import SelfSkip, merit
from sapwood.drafters.self.skip_search import SkipSearch, spread
from sapwood.engine.cost_model import flat
from sapwood.engine.loop import Engine, no_loader
from sapwood.policies.chain import Chain
from sapwood.recipe import Recipe
from sapwood.verifiers.match import Match
from tests.helpers.self_draft_targets import TEXT, each_target, rows_of, target


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAPWOOD_CACHE", str(tmp_path))


def make_search(path: Path, layers: int = 12, count: int = 6) -> SkipSearch:
    return SkipSearch(layers, count, path / "set.json", KeyedRng(0))


def test_sets_leave_the_first_and_the_last_layer_alone(tmp_path: Path) -> None:
    search = make_search(tmp_path)
    seen = {search.best}
    for _ in range(60):
        sublayers = search.propose()
        assert len(set(sublayers)) == 6
        assert min(sublayers) >= 2
        assert max(sublayers) <= 21
        assert sublayers != search.best
        seen.add(sublayers)
    assert len(seen) > 50
    assert [make_search(tmp_path).propose() for _ in range(2)] == [
        make_search(tmp_path).propose()
    ] * 2
    assert spread(range(2, 22), 5) == (4, 8, 12, 16, 20)
    assert make_search(tmp_path, layers=2).best == ()


def test_the_search_finds_what_can_be_skipped(tmp_path: Path) -> None:
    useless = {3, 5, 8, 13, 18, 20}
    search = make_search(tmp_path)

    def said(sublayers: tuple[int, ...]) -> tuple[float, float]:
        return len(useless & set(sublayers)) / 6, 0.5

    for _ in range(400):
        sublayers = search.propose()
        search.judge(sublayers, said(sublayers), said(search.best))
    assert set(search.best) == useless
    assert search.merit == (1.0, 0.5)
    assert make_search(tmp_path).best == search.best  # it was kept


def test_a_set_must_be_better_on_the_same_text(tmp_path: Path) -> None:
    search = make_search(tmp_path)
    best = search.best
    other = search.propose()
    assert not search.judge(other, (0.5, 0.1), (0.5, 0.1))
    assert search.best == best
    assert search.judge(other, (0.5, 0.2), (0.5, 0.1))
    assert search.best == other
    assert search.stale == 0


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        json.dumps({"layers": 12, "skip": [1, 2, 3, 4, 5, 6], "tries": 1}),
        json.dumps({"layers": 9, "skip": [2, 3, 4, 5, 6, 7], "tries": 1}),
        json.dumps({"layers": 12, "skip": [2, 3], "tries": 1}),
        json.dumps({"layers": 12, "skip": "all", "tries": 1}),
    ],
)
def test_a_damaged_file_is_left_alone(content: str, tmp_path: Path) -> None:
    (tmp_path / "set.json").write_text(content)
    assert make_search(tmp_path).best == spread(range(2, 22), 6)


@each_target
def test_merit_is_what_a_variant_would_have_said(kind: str) -> None:
    backend = target(kind)
    made = backend.variant(skip=[2])
    session = backend.open(TEXT[:10])
    said, chance = merit(made, session, TEXT[10:20])
    hits = 0
    chances = []
    for end in range(11, 20):
        prefix = backend.open(TEXT[:10])
        chain = Tree(TEXT[10])
        for node, token in enumerate(TEXT[11:end]):
            chain.add(node, token, 1.0)
        row = rows_of(made, made.share_session(prefix), chain)[-1].astype(float)
        probs = np.exp(row - row.max()) / np.exp(row - row.max()).sum()
        hits += int(np.argmax(row)) == TEXT[end]
        chances.append(probs[TEXT[end]])
    assert said == pytest.approx(hits / 9)
    assert chance == pytest.approx(np.mean(chances), abs=1e-6)


@each_target
def test_the_set_is_searched_while_decoding_and_kept(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SelfSkip, "now", staticmethod(lambda: 0.0))
    backend = target(kind)
    for seconds, tried in ((1.0, True), (0.0, False)):
        engine = Engine(
            backend, Recipe(SelfSkip(share=0.5, seconds=seconds), Chain(), Match(), Fixed(3, 3, 1))
        )
        drafter: Any = engine.recipe.drafter
        begun, first = drafter.sets.tries, drafter.sets.best
        for _ in engine.rounds(TEXT[:9], Sampling(max_tokens=60), KeyedRng(0)):
            pass
        assert (drafter.sets.tries > begun) is tried
        if tried:
            assert drafter.sets.best != first
            assert json.loads(drafter.sets.path.read_text())["skip"] == list(drafter.sets.best)
            again = SelfSkip(share=0.5)
            again.bind(EngineContext(backend, flat(), no_loader))
            assert again.sets.best == drafter.sets.best


def test_a_slow_try_is_paid_off_by_resting(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter(range(10_000))
    monkeypatch.setattr(
        SelfSkip, "now", staticmethod(lambda: float(next(ticks)))
    )  # each try takes a second
    recipe = Recipe(SelfSkip(share=0.5, seconds=0.25, enough=1.0), Chain(), Match(), Fixed(1, 1, 1))
    engine = Engine(target("packed"), recipe)
    rounds = list(engine.rounds(TEXT[:9], Sampling(max_tokens=80), KeyedRng(0)))
    drafter: Any = engine.recipe.drafter
    assert 2 <= drafter.sets.tries <= len(rounds) / 4 + 1

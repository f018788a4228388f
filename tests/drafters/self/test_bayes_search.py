"""SWIFT's search for sublayers: random sets, Bayesian steps, and scores across texts."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sapwood.controllers.fixed import Fixed
from sapwood.core.rng import KeyedRng
from sapwood.core.sampling import Sampling
from sapwood.drafters.self import self_skip
from sapwood.drafters.self.bayes_search import BayesSearch, matern, upper_bounds
from sapwood.drafters.self.self_skip import SelfSkip, SkipRule
from sapwood.drafters.self.skip_search import SkipSearch
from sapwood.engine.loop import Engine
from sapwood.policies.chain import Chain
from sapwood.recipe import Recipe
from sapwood.verifiers.match import Match
from tests.helpers.self_draft_targets import TEXT, target

USELESS = frozenset({3, 5, 8, 13, 18, 20})


def make(path: Path, layers: int = 12, count: int = 6) -> BayesSearch:
    return BayesSearch(layers, count, path / "set.json", KeyedRng(0))


def said(sublayers: tuple[int, ...]) -> tuple[float, float]:
    return len(USELESS & set(sublayers)) / 6, 0.5


def test_sets_have_the_size_and_leave_the_ends_alone(tmp_path: Path) -> None:
    search = make(tmp_path)
    seen = set()
    for _ in range(50):
        sublayers = search.propose()
        assert len(set(sublayers)) == 6
        assert set(sublayers) <= set(range(2, 22))
        search.judge(sublayers, said(sublayers), search.merit)
        seen.add(sublayers)
    assert len(seen) > 45
    assert len(search.points) == len(search.scores) == 50


def test_every_25th_set_is_the_processes(tmp_path: Path) -> None:
    search = make(tmp_path)
    steps = []
    for number in range(1, 101):
        sublayers = search.propose()
        if set(search.point.tolist()) - {0.0, 1.0}:  # a point inside the cube
            steps.append(number)
            scores = said(sublayers)[0], float(np.mean(search.scores))
        search.judge(sublayers, said(sublayers), search.merit)
    assert steps == [25, 50, 75, 100]
    assert scores[0] > scores[1]  # the process has learnt which sublayers are useless


def test_scores_of_different_texts_are_compared(tmp_path: Path) -> None:
    search = make(tmp_path)
    first = search.propose()
    assert search.judge(first, (0.5, 0.1), search.merit)
    other = search.propose()
    assert not search.judge(other, (0.5, 0.9), search.merit)  # equal shares do not take over
    assert search.best == first
    assert search.judge(other, (0.6, 0.0), search.merit)
    again = make(tmp_path)
    assert (again.best, again.merit) == (other, (0.6, 0.0))  # the score to exceed is kept
    assert (SkipSearch.same_text, BayesSearch.same_text) == (True, False)


def test_the_search_ends(tmp_path: Path) -> None:
    search = make(tmp_path)
    assert not search.ended(0.93, 300)
    search.tries = 1000
    assert search.ended(0.93, 300)
    search.tries, search.stale = 10, 300
    assert search.ended(0.93, 300)
    search.stale, search.merit = 0, (0.94, 0.0)
    assert search.ended(0.93, 300)
    exchange = SkipSearch(12, 6, tmp_path / "other.json", KeyedRng(0), tries=5000)
    assert not exchange.ended(0.93, 300)


def test_the_kernel_and_the_bounds() -> None:
    points = np.array([[0.0, 0.0], [1.0, 0.0]])
    root = math.sqrt(5.0)
    wanted = (1 + root + 5 / 3) * math.exp(-root)
    assert matern(points, points, 1.0) == pytest.approx(np.array([[1, wanted], [wanted, 1]]))
    bounds = upper_bounds(points, np.array([0.2, 0.8]), np.array([[0.0, 0.0], [1.0, 0.0], [9, 9]]))
    assert bounds[1] > bounds[0]  # a better score
    assert bounds[2] > bounds[0]  # nothing is known there
    assert bounds[2] == pytest.approx(0.5 + 0.3 * 2.5, abs=0.01)


def test_it_runs_while_decoding_with_one_pass_a_try(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SAPWOOD_CACHE", str(tmp_path))
    monkeypatch.setattr(SelfSkip, "now", staticmethod(lambda: 0.0))
    tried = []

    def merit(*given: Any) -> tuple[float, float]:
        tried.append(given)
        return 0.1, 0.2

    monkeypatch.setattr(self_skip, "merit", merit)
    drafter = SelfSkip(share=0.5, seconds=1.0, search=SkipRule.BAYES)
    engine = Engine(target("stock"), Recipe(drafter, Chain(), Match(), Fixed(2, 2, 1)))
    bound: Any = engine.recipe.drafter
    for _ in engine.rounds(TEXT[:9], Sampling(max_tokens=60), KeyedRng(0)):
        if bound.sets.tries > 3:
            break
    assert isinstance(bound.sets, BayesSearch)
    assert len(tried) == bound.sets.tries == len(bound.sets.scores) > 3
    assert bound.sets.merit == (0.1, 0.0)
    assert bound.sets.path.name.endswith("-bayes.json")

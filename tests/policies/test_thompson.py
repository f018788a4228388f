"""Thompson sampling of chain lengths."""

import itertools

import numpy as np
import pytest

from sapwood.backends.toy import ToyBackend
from sapwood.controllers.fixed import Fixed
from sapwood.core.rng import KeyedRng
from sapwood.core.sampling import Sampling
from sapwood.drafters.compose.draft_model import DraftModel
from sapwood.engine.loop import Engine
from sapwood.policies.thompson import Thompson
from sapwood.recipe import Recipe
from sapwood.verifiers.match import Match
from tests.helpers.trained_policy_rounds import bound, played


def test_thompson_learns_how_long_chains_stand() -> None:
    good = DraftModel(model=ToyBackend("target"))
    bad = DraftModel(model=ToyBackend("other"))
    depths = {}
    for name, drafter in (("good", good), ("bad", bad)):
        recipe = Recipe(drafter, Thompson(fade=1.0), Match(), Fixed(nodes=20, depth=20, width=1))
        depths[name] = np.mean([outcome.tree.height for outcome in played(recipe, 60)[20:]])
    assert depths["good"] > 8  # the draft is the target itself
    assert depths["bad"] < 4


def test_thompson_counts_each_depth_once_it_was_tested() -> None:
    policy = bound(Thompson(fade=1.0))
    assert isinstance(policy, Thompson)
    recipe = Recipe(
        DraftModel(model=ToyBackend("draft")), policy, Match(), Fixed(nodes=9, depth=9, width=1)
    )
    engine = Engine(ToyBackend(), recipe)
    rounds = list(
        itertools.islice(engine.rounds([0, 1, 2], Sampling(max_tokens=200), KeyedRng(0)), 30)
    )
    counts = engine.recipe.policy.counts  # type: ignore[attr-defined]
    yes = [sum(outcome.verdict.accepted > depth for outcome in rounds) for depth in range(9)]
    no = [
        sum(one.verdict.accepted == depth < one.tree.height for one in rounds) for depth in range(9)
    ]
    assert counts[:9].tolist() == [[float(a), float(b)] for a, b in zip(yes, no, strict=True)]


def test_thompson_draws_from_the_beta_law() -> None:
    policy = bound(Thompson(yes=3.0, no=2.0))
    assert isinstance(policy, Thompson)
    policy.counts[2] = [4.0, 1.0]  # pooled with what it began with: 7 to 3, worth five
    full_probs = policy.posterior(2)
    grid = (np.arange(64) + 0.5) / 64
    yes = 4.0 + 3.5
    no = 1.0 + 1.5
    assert full_probs @ grid == pytest.approx(yes / 10, abs=1e-3)
    assert full_probs @ grid**2 - (full_probs @ grid) ** 2 == pytest.approx(
        yes * no / (10**2 * 11), abs=1e-3
    )
    assert policy.posterior(9) @ grid == pytest.approx(
        7 / 10, abs=1e-3
    )  # never reached: the record of all depths


def test_thompsons_noise_depends_on_seed_and_place_alone() -> None:
    def depths(seed: int, prompt: tuple[int, ...] = (0, 1, 2)) -> list[int]:
        recipe = Recipe(
            DraftModel(model=ToyBackend()),
            Thompson(seed=seed),
            Match(),
            Fixed(nodes=20, depth=20, width=1),
        )
        return [outcome.tree.height for outcome in played(recipe, 12, prompt=prompt)]

    assert depths(0) == depths(0)
    assert depths(0) != depths(1)
    assert depths(0) != depths(0, (1, 1, 2))

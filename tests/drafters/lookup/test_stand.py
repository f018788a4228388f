"""STAND averages distributions by n-gram, backs off, forgets, and draws what it has seen."""

import numpy as np
import pytest

from sapwood.backends.toy import ToyBackend, probs_after
from sapwood.controllers.fixed import Fixed
from sapwood.core.rng import KeyedRng
from sapwood.core.sampling import Sampling
from sapwood.core.types import Draw
from sapwood.drafters.lookup import stand as stand_module
from sapwood.drafters.lookup.stand import Stand
from sapwood.engine.loop import Engine
from sapwood.policies.static import Static
from sapwood.recipe import Recipe
from sapwood.testing import law_error
from sapwood.verifiers.mixed import Mixed
from sapwood.verifiers.rrs import Rrs
from tests.helpers.head_checks import misstated

TREE = Static(shape=[2, 1])
SMALL = Fixed(nodes=4, depth=2, width=2)


def run(drafter: Stand, rounds: int = 12) -> Stand:
    engine = Engine(ToyBackend("a"), Recipe(drafter, TREE, Rrs(), SMALL))
    sampling = Sampling(temperature=1.0, max_tokens=60)
    for _, _ in zip(range(rounds), engine.rounds([0, 1, 2], sampling, KeyedRng(1)), strict=False):
        pass
    bound = engine.recipe.drafter
    assert isinstance(bound, Stand)
    return bound


def test_a_distribution_seen_once_is_the_targets() -> None:
    bound = run(Stand(n=8))
    whole = [
        context for context, (times, _) in bound.table.items() if times == 1 and len(context) == 8
    ]
    assert whole
    for context in bound.table:
        assert sum(bound.known(context).values()) == pytest.approx(1.0)


def test_the_longest_known_ngram_counts_and_shorter_ones_are_averages() -> None:
    stand = Stand(n=2)
    stand.vocab = 3
    stand.table = {}
    tokens = np.array([[0, 1], [1, 2]])
    chances = np.array([[0.6, 0.4], [0.9, 0.1]])
    stand._learn([2, 1, 0, 1], [2, 4], tokens, chances)  # after (2, 1) and after (0, 1)
    assert stand.known((2, 1)) == pytest.approx({0: 0.6, 1: 0.4})
    assert stand.known((7, 1)) == pytest.approx({0: 0.3, 1: 0.65, 2: 0.05})
    assert stand.known((7, 7)) == {}


def test_old_ngrams_are_dropped() -> None:
    bound = run(Stand(n=6, most=20), rounds=40)
    assert len(bound.table) <= 20


def test_the_newest_half_stays() -> None:
    stand = Stand(n=1, most=4)
    stand.vocab = 9
    stand.table = {}
    tokens, chances = np.array([[0]] * 5), np.ones((5, 1))
    stand._learn([1, 2, 3, 4, 5], [1, 2, 3, 4, 5], tokens, chances)
    assert list(stand.table) == [(4,), (5,)]


def test_the_best_tokens_of_a_distribution_are_kept() -> None:
    bound = run(Stand(count=2, n=8))
    assert {len(sums) for times, sums in bound.table.values() if times == 1} == {2}


@pytest.mark.parametrize(("draws", "verifier"), [(Draw.SWOR, Rrs()), (Draw.MIXED, Mixed())])
def test_what_is_learned_keeps_the_law(draws: Draw, verifier: Rrs | Mixed) -> None:
    """Two rounds: the second drafts from what the first has shown."""
    recipe = Recipe(
        Stand(draws=draws), Static(shape=[2]), verifier, Fixed(nodes=2, depth=1, width=2)
    )
    assert law_error(recipe, ToyBackend("a"), prompt=(0, 1, 0), rounds=3, horizon=3) <= 1e-12


def test_a_table_that_states_other_probs_than_it_draws_from_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stand_module, "propose", misstated)
    small = Fixed(nodes=2, depth=1, width=2)
    recipe = Recipe(Stand(draws=Draw.SWOR), Static(shape=[2]), Rrs(), small)
    assert law_error(recipe, ToyBackend("a"), prompt=(0, 1, 0), rounds=3, horizon=3) > 1e-3


def test_a_table_that_knows_the_target_is_accepted_like_its_own_draws() -> None:
    stand = Stand(n=3)
    engine = Engine(ToyBackend("a"), Recipe(stand, TREE, Rrs(), SMALL))
    bound = engine.recipe.drafter
    assert isinstance(bound, Stand)
    for context in [(0, 1, 2), (1, 2)]:
        bound.table[context] = 1, dict(enumerate(probs_after("a", 3, (0, 1, 2)).tolist()))
    sampling = Sampling(temperature=1.0, max_tokens=9)
    for seed in range(8):
        outcome = next(engine.rounds([0, 1, 2], sampling, KeyedRng(seed)))
        assert outcome.verdict.accepted >= 1  # the first draw of p itself is never refused
        bound.table.clear()
        bound.table[0, 1, 2] = 1, dict(enumerate(probs_after("a", 3, (0, 1, 2)).tolist()))

"""Two-stage selection accepts as often as its own formula says, and as the optimum where it names all."""

import itertools

import numpy as np
import pytest

from sapwood.core.types import Draw
from sapwood.errors import SapwoodError
from sapwood.verifiers.khisti import DraftSelection, Khisti, symbol_sets
from sapwood.verifiers.mss import Mss
from tests.helpers.verifier_recipes import accepted, best_possible, laws_of


@pytest.mark.parametrize("pair", range(6))
def test_the_picked_token_follows_its_law(pair: int) -> None:
    p, q = laws_of(pair)
    for tokens in (1, 2, 4):
        selection = DraftSelection(p, q, tokens, 2)
        found = np.zeros(len(p))
        for drawn in itertools.product(range(len(p)), repeat=2):
            symbols = [
                selection.named.index(token) if token in selection.named else selection.rest
                for token in drawn
            ]
            shares = selection.shares[frozenset(symbols)]
            for symbol in set(symbols):
                found[drawn[symbols.index(symbol)]] += q[list(drawn)].prod() * shares[symbol]
        assert selection.law() == pytest.approx(found, abs=1e-12)
        assert selection.law().sum() == pytest.approx(1.0)


@pytest.mark.parametrize("pair", range(6))
def test_it_is_the_optimum_where_every_token_is_named(pair: int) -> None:
    p, q = laws_of(pair)
    found = accepted(Draw.IID, Khisti(shape=[2]), pair)
    assert found == pytest.approx(best_possible(p, q, 2, True), abs=1e-9)
    assert found >= accepted(Draw.IID, Mss(), pair) - 1e-12


def test_the_sets_of_draws_share_all_of_the_chance() -> None:
    chances = np.array([0.5, 0.3, 0.0, 0.2])
    sets = symbol_sets(chances, 3)
    assert sum(sets.values()) == pytest.approx(1.0)
    assert sets[frozenset({0})] == pytest.approx(0.125)
    assert not any(2 in members for members in sets)


def test_a_plan_too_large_is_refused() -> None:
    with pytest.raises(SapwoodError, match="lower tokens"):
        Khisti(shape=[4])

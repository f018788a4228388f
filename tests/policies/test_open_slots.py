"""Open slots are valued by the probability that is left for them."""

import numpy as np
import pytest
from hypothesis import given

from sapwood.core.rng import KeyedRng
from sapwood.core.tree import ROOT, Tree
from sapwood.policies.open_slots import places
from tests.helpers.oracle_drafter import SEEDS, Oracle


@given(SEEDS)
def test_places_are_valued_by_what_is_left(seed: int) -> None:
    oracle = Oracle(seed, sampled=True)
    tree = Tree(0)
    oracle.expand(tree, [(ROOT, 3)], KeyedRng(0))
    place, through = places(tree)
    probs = oracle.probs(())
    order = oracle.order(())
    assert through[1:] == pytest.approx(probs[order])
    assert place[1:] == pytest.approx(1.0 - np.append(0.0, np.cumsum(probs[order])[:-1]))


def test_a_chosen_nodes_place_is_worth_the_node() -> None:
    tree = Tree(0)
    tree.extend(ROOT, [1, 2], [0.5, 0.25])
    tree.add(ROOT, 0, 0.8, sampled=True)  # drawn from the quarter that is left
    tree.add(1, 2, 0.5, sampled=True)
    place, through = places(tree)
    assert place.tolist() == [1.0, 0.5, 0.25, 0.25, 0.5]
    assert through.tolist() == [1.0, 0.5, 0.25, 0.2, 0.25]

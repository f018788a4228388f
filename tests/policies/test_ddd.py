"""DDD stops where the beam holds too little probability."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sapwood.core.rng import KeyedRng
from sapwood.core.tree import ROOT, Tree
from sapwood.core.types import Budget
from sapwood.engine.request_decoder import grow
from sapwood.policies.beam import Beam
from sapwood.policies.ddd import Ddd
from tests.helpers.oracle_drafter import SEEDS, Oracle


@given(SEEDS, st.sampled_from([0.0, 0.2, 0.5, 0.9]))
def test_ddd_stops_where_the_beam_holds_too_little(seed: int, least: float) -> None:
    oracle = Oracle(seed)
    beam = 2
    looks = [2, 3]
    tree = grow(0, oracle, Ddd(beam=beam, least=least, looks=looks), Budget(99, 5, 3), KeyedRng(0))
    full = grow(0, oracle, Beam(beam=beam), Budget(99, 5, 3), KeyedRng(0))
    held = {depth: sum(sorted(full.reach[full.level(depth)])[-beam:]) for depth in range(1, 5)}
    expected = next((depth for depth in looks if held[depth] < least), 5)
    assert tree.height == expected
    assert np.array_equal(tree.tokens, full.tokens[: len(tree)])


def test_ddd_looks_at_the_beam_and_not_at_the_level() -> None:
    tree = Tree(0)
    tree.extend(ROOT, list(range(4)), [0.3, 0.3, 0.2, 0.2])
    policy = Ddd(beam=2, least=0.7, looks=[1])
    assert not policy.frontier(tree, Budget(9, 9, 4))  # the two best hold 0.6, all four 1.0
    assert len(Ddd(beam=3, least=0.7, looks=[1]).frontier(tree, Budget(9, 9, 4))) == 3
    assert len(Ddd(beam=2, least=0.7, looks=[2]).frontier(tree, Budget(9, 9, 4))) == 2
    assert policy.tree_shape(Budget(9, 9, 4)) is None  # type: ignore[func-returns-value]

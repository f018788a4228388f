"""OPT-Tree finds the subtree of largest expected length and stops when a level adds too little."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapwood.common.rank_table import Ranks
from sapwood.core.rng import KeyedRng
from sapwood.core.types import Budget
from sapwood.engine.request_decoder import grow
from sapwood.policies.opt_tree import OptTree
from tests.helpers.oracle_drafter import SEEDS, Oracle, paths, reaches, run


def subtrees(nodes: frozenset[Ranks], every: list[Ranks], size: int) -> set[frozenset[Ranks]]:
    """Every subtree of so many nodes."""
    found = {frozenset[Ranks]()}
    for _ in range(size):
        found = {
            tree | {path}
            for tree in found
            for path in every
            if path not in tree and path[:-1] in tree | {()}
        }
    return found


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("nodes", [1, 3, 5])
def test_opt_tree_is_the_longest_of_all_subtrees(seed: int, nodes: int) -> None:
    oracle = Oracle(seed, vocab=2)
    tree = run(OptTree(gain=0.0), oracle, Budget(nodes, 3, 2))
    worth = reaches(oracle, 3)
    best = max(
        sum(worth[path] for path in one) for one in subtrees(frozenset(), list(worth), nodes)
    )
    assert sum(worth[path] for path in paths(tree)) == pytest.approx(best)


@given(SEEDS, st.integers(1, 40))
def test_opt_tree_leaves_out_only_what_cannot_enter(seed: int, nodes: int) -> None:
    oracle = Oracle(seed)
    tree = run(OptTree(gain=0.0), oracle, Budget(nodes, 4, 3))
    assert sorted(tree.reach[1:], reverse=True) == pytest.approx(
        sorted(reaches(oracle, 4).values())[::-1][:nodes]
    )
    assert oracle.calls <= 4  # one call a level
    assert oracle.asked <= 1 + 3 * nodes


@given(SEEDS, st.sampled_from([0.02, 0.1, 0.3, 0.6]))
def test_opt_tree_stops_when_a_level_adds_too_little(seed: int, gain: float) -> None:
    nodes = 6
    depth = 4
    oracle = Oracle(seed)
    worth = reaches(oracle, depth)
    lengths = [
        sum(
            sorted((reach for path, reach in worth.items() if len(path) <= height), reverse=True)[
                :nodes
            ]
        )
        for height in range(depth + 1)
    ]
    gains = np.diff(lengths)
    stop = next((height for height in range(1, depth) if gains[height - 1] <= gain), depth)
    policy = OptTree(gain=gain)
    tree = grow(0, oracle, policy, Budget(nodes, depth, 3), KeyedRng(0))
    policy.prune(tree, Budget(nodes, depth, 3))  # fills in the reach of the last level
    assert sum(sorted(tree.reach[1:])[-nodes:]) == pytest.approx(lengths[stop])
    assert tree.height <= stop
    assert gains[tree.height : stop].sum() == pytest.approx(
        0.0
    )  # sooner only where no leaf could add anything

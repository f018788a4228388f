"""DySpec fills places in the order of their probability."""

import heapq
import itertools

from hypothesis import given
from hypothesis import strategies as st

from sapwood.common.rank_table import Ranks
from sapwood.core.types import Budget
from sapwood.policies.dyspec import DySpec
from tests.helpers.oracle_drafter import SEEDS, Oracle, paths, run


def filled(oracle: Oracle, nodes: int, depth: int, most: int, least: float) -> list[Ranks]:
    """Algorithm 1 of DySpec, told slowly: pop the best place, draw there, push below and beside."""
    found: list[Ranks] = []
    heap: list[tuple[float, int, Ranks, int]] = [(-1.0, 0, (), 0)]
    names = itertools.count(1)
    while heap and len(found) < nodes:
        worth, _, path, index = heapq.heappop(heap)
        if -worth < least:
            break
        token, prob = oracle.turns(path)[index]
        found.append((*path, token))
        if len(path) + 1 < depth:
            heapq.heappush(heap, (worth * prob, next(names), (*path, token), 0))
        if index + 1 < most:
            heapq.heappush(heap, (worth * (1 - prob), next(names), path, index + 1))
    return found


@given(SEEDS, st.integers(1, 40), st.integers(1, 3), st.sampled_from([1, 2, 50]))
def test_dyspec_fills_places_in_the_order_of_their_chance(
    seed: int, nodes: int, most: int, stride: int
) -> None:
    oracle = Oracle(seed, sampled=True)
    tree = run(DySpec(stride=stride), oracle, Budget(nodes, 4, most))
    assert paths(tree) == set(filled(oracle, nodes, 4, most, 0.0))
    if stride == 1:
        inner = {path[:-1] for path in filled(oracle, nodes, 4, most, 0.0)}
        assert oracle.asked == len(inner)  # whoever has children in the tree was asked, nobody else


@given(SEEDS, st.sampled_from([0.02, 0.1, 0.3]))
def test_dyspec_by_a_threshold_goes_level_by_level(seed: int, least: float) -> None:
    oracle = Oracle(seed, sampled=True)
    tree = run(DySpec(threshold=least, stride=64), oracle, Budget(500, 5, 3))
    assert paths(tree) == set(filled(oracle, 500, 5, 3, least))
    assert oracle.calls <= 5

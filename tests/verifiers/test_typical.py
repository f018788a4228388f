"""Typical acceptance: the longest typical path."""

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sapwood.verifiers.typical import Typical
from tests.helpers.lossy_rules import SEEDS, judged, lenient_path


@given(seed=SEEDS, best=st.booleans())
def test_typical_takes_the_longest_typical_path(seed: int, best: bool) -> None:
    tree, all_probs, verdict, own = judged(Typical(best=best), seed, 1.0)

    def typical(node: int) -> bool:
        probs = all_probs[tree.parents[node]]
        spread = -sum(chance * math.log(chance) for chance in probs.tolist())
        return bool(probs[tree.tokens[node]] > min(0.09, 0.3 * math.exp(-spread)))

    paths = [tree.path(node) for node in range(len(tree))]
    able = [path for path in paths if all(typical(node) for node in path[1:])]
    longest = [path for path in able if len(path) == max(map(len, able))]
    logs = [
        sum(math.log(all_probs[tree.parents[node], tree.tokens[node]]) for node in path[1:])
        for path in longest
    ]
    assert list(verdict.path) == longest[int(np.argmax(logs))]
    assert verdict.bonus == (
        int(np.argmax(all_probs[verdict.path[-1]])) if best else own[verdict.path[-1]]
    )


@given(seed=SEEDS)
def test_typical_is_the_greedy_walk_at_temperature_zero(seed: int) -> None:
    tree, all_probs, verdict, own = judged(Typical(), seed, 0.0)
    path, bonus = lenient_path(tree, all_probs, own, lambda path, child: False)
    assert (list(verdict.path), verdict.bonus) == (path, bonus)

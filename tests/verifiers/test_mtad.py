"""MTAD accepts the longest path by its joint likelihood; its policy drafts the likeliest path."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given

from sapwood.core.tree import ROOT, Tree
from sapwood.core.types import Budget
from sapwood.policies.beam_path import BeamPath
from sapwood.verifiers.mtad import Mtad
from tests.helpers.lossy_rules import SEEDS, judged


class KnownLaws:
    """Probabilities of the target at each node."""

    greedy = True

    def __init__(self, laws: Any) -> None:
        self.laws = np.array(laws)

    def soft(self, node: int) -> Any:
        return self.laws[node]

    def draw(self, node: int, position: int, rng: object) -> int:
        return int(np.argmax(self.laws[node]))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@given(seed=SEEDS)
def test_the_longest_path_of_enough_joint_likelihood_is_accepted(
    seed: int, temperature: float
) -> None:
    tree, all_probs, verdict, own = judged(Mtad(threshold=0.5), seed, temperature)
    ratios = {ROOT: 1.0}
    for node in range(1, len(tree)):
        parent = int(tree.parents[node])
        ratios[node] = (
            ratios[parent] * all_probs[parent, tree.tokens[node]] / float(tree.probs[node])
        )
    passed = [node for node, ratio in ratios.items() if min(1.0, ratio) > 0.5]
    assert len(verdict.path) - 1 == max(int(tree.depths[node]) for node in passed)
    assert verdict.path[-1] in passed
    assert verdict.bonus == own[verdict.path[-1]]


def test_a_likely_token_makes_up_for_an_unlikely_one_before_it() -> None:
    tree = Tree(0)
    tree.add(tree.add(ROOT, 1, 0.5), 2, 0.2)
    laws = [[0.5, 0.1, 0.4], [0.1, 0.1, 0.8], [1.0, 0.0, 0.0]]
    verdict = Mtad(threshold=0.5).verify(tree, KnownLaws(laws), 5, None)  # type: ignore[arg-type]
    assert verdict.path == (0, 1, 2)  # 0.2, then 0.2 * 4 = 0.8
    assert math.isclose(0.1 / 0.5 * 0.8 / 0.2, 0.8)


def test_a_token_that_cannot_be_ends_its_own_branch_alone() -> None:
    tree = Tree(0)
    first, second = tree.extend(ROOT, [1, 2], [0.5, 0.5])
    tree.add(first, 1, 1.0)
    last = tree.add(second, 1, 1.0)
    known: Any = KnownLaws(
        [[0.5, 0.0, 0.5], [0.0, 1.0, 0.0], [0.0, 1.0, 0.0], [1, 0, 0], [1, 0, 0]]
    )
    none: Any = None
    assert Mtad(threshold=0.5).verify(tree, known, 5, none).path == (0, second, last)


def test_a_threshold_of_one_lets_nothing_pass() -> None:
    tree = Tree(0)
    tree.extend(ROOT, [1, 2], [0.5, 0.5])
    known: Any = KnownLaws([[0.0, 1.0, 0.0], [1, 0, 0], [1, 0, 0]])
    none: Any = None
    assert Mtad(threshold=1.0).verify(tree, known, 5, none).path == (ROOT,)
    assert Mtad(threshold=0.99).verify(tree, known, 5, none).path == (ROOT, 1)


def test_the_policy_keeps_the_likeliest_path_and_not_the_greedy_one() -> None:
    tree = Tree(0)
    first, other = tree.extend(ROOT, [1, 2], [0.6, 0.4])
    tree.extend(first, [3], [0.3])
    tree.extend(other, [4], [0.9])
    kept = BeamPath(beam=2).prune(tree, Budget(nodes=2, depth=2, width=2))
    assert kept.tokens.tolist() == [0, 2, 4]
    assert BeamPath().prune(tree, Budget(nodes=1, depth=2, width=2)).tokens.tolist() == [0, 1]

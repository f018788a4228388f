"""CAST expands, deepens and checks the nodes that pay."""

from typing import Any

import numpy as np
from hypothesis import given

from sapwood.backends.toy import ToyBackend
from sapwood.core.protocols import EngineContext
from sapwood.core.rng import KeyedRng
from sapwood.core.tree import ROOT, Tree
from sapwood.core.types import Budget, Outcome, StageTimes, Verdict
from sapwood.engine.cost_model import flat
from sapwood.engine.loop import no_loader
from sapwood.engine.request_decoder import grow
from sapwood.policies.beam import Beam
from sapwood.policies.cast import STALE, Cast
from tests.helpers.oracle_drafter import SEEDS, Oracle, paths, request


def round_of(tree: Tree, path: tuple[int, ...]) -> Outcome:
    return Outcome(tree, tree, Verdict(path, 0), None, 0, StageTimes())  # type: ignore[arg-type]


def cast(level: float, node: float, **options: Any) -> Cast:
    policy = Cast(**options)
    policy.bind(EngineContext(ToyBackend(), flat(), no_loader))
    policy.reset(request())
    policy.pace.level = level
    policy.pace.node = node
    return policy


@given(SEEDS)
def test_cast_without_a_clock_is_a_beam(seed: int) -> None:
    budget = Budget(12, 4, 3)
    ours = cast(1.0, 1.0, beam=2)
    beam = Beam(beam=2)
    trees = [grow(0, Oracle(seed), policy, budget, KeyedRng(0)) for policy in (ours, beam)]
    assert np.array_equal(trees[0].tokens, trees[1].tokens)
    assert paths(ours.prune(trees[0], budget)) == paths(beam.prune(trees[1], budget))


def test_cast_expands_the_nodes_that_pay() -> None:
    tree = Tree(0)
    tree.extend(ROOT, [1, 2, 3, 4], [0.5, 0.25, 0.15, 0.05])
    budget = Budget(30, 9, 4, rate=10.0)
    asked = {
        node: len(cast(0.0, node).frontier(tree, budget))
        for node in (0.001, 0.01, 0.02, 0.03, 0.06)
    }
    assert asked == {
        0.001: 4,
        0.01: 3,
        0.02: 2,
        0.03: 1,
        0.06: 0,
    }  # the last: not even the best pays for its level
    assert len(cast(0.0, 0.01, breadth=2.0).frontier(tree, budget)) == 2


def test_cast_deepens_while_the_next_level_pays() -> None:
    tree = Tree(0)
    tree.extend(ROOT, [1], [0.5])
    policy = cast(0.03, 0.0)
    budget = Budget(30, 9, 4, rate=10.0)
    assert policy.frontier(tree, budget)  # 0.5 tokens against 0.3
    grown = Tree(0)
    grown.extend(ROOT, [1], [0.5])
    grown.extend(1, [1, 2], [0.3, 0.1])
    grown.close(ROOT)
    grown.close(1)
    policy.observe(
        round_of(grown, (0,))
    )  # this level passed on two fifths: 0.2 tokens are to be expected
    assert not policy.frontier(tree, budget)
    assert Cast(depth=0.5).paper
    assert cast(0.03, 0.0, depth=0.0).frontier(tree, budget)
    for _ in range(STALE):
        policy.observe(round_of(Tree(0), (0,)))
    assert policy.frontier(tree, budget), "what was seen long ago is tried again"


def test_cast_checks_the_nodes_that_pay() -> None:
    tree = Tree(0)
    tree.extend(ROOT, [1, 2, 3, 4], [0.5, 0.25, 0.15, 0.05])
    budget = Budget(4, 9, 4, price=0.1 * np.arange(5))
    assert len(cast(0, 0).prune(tree, budget)) == 4
    assert len(cast(0, 0, size=2.0).prune(tree, budget)) == 3
    assert len(cast(0, 0, size=9.0).prune(tree, budget)) == 1

"""Sequoia: the best of all trees for an acceptance vector, which it measures and keeps."""

import functools
import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapwood.backends.toy import ToyBackend
from sapwood.common.rank_table import Ranks
from sapwood.controllers.fixed import Fixed
from sapwood.core.protocols import EngineContext, Policy
from sapwood.core.rng import KeyedRng
from sapwood.core.sampling import Sampling
from sapwood.core.tree import ROOT, Tree
from sapwood.core.types import Budget, Outcome, StageTimes, Verdict
from sapwood.drafters.compose.draft_model import DraftModel
from sapwood.engine.cost_model import flat
from sapwood.engine.loop import Engine, no_loader
from sapwood.policies import rank_acceptance as tests_of_siblings
from sapwood.policies.rank_acceptance import OFTEN, TRUST, USUAL, RankAcceptance, RankAcceptanceFile
from sapwood.policies.rank_paths import breadth_first
from sapwood.policies.sequoia import Sequoia, children, choose, solve
from sapwood.recipe import Recipe
from sapwood.recipes import resolve
from tests.helpers.oracle_drafter import Oracle, request, run

Shape = tuple[Any, ...]  # a tree as the tuple of its subtrees


@functools.cache
def shapes(rows: int, depth: int, fan: int) -> list[Shape]:
    """Every ordered tree of so many rows, none deeper than `depth`."""
    if rows == 1:
        return [()]
    return [tuple(kids) for kids in forests(rows - 1, depth - 1, fan)] if depth else []


def forests(rows: int, depth: int, fan: int) -> list[list[Shape]]:
    """Every ordered row of at most `fan` trees."""
    if rows == 0:
        return [[]]
    if fan == 0:
        return []
    return [
        [first, *rest]
        for size in range(1, rows + 1)
        for first in shapes(size, depth, FAN)
        for rest in forests(rows - size, depth, fan - 1)
    ]


FAN = 3


def tokens_of(shape: Shape, vector: tuple[float, ...]) -> float:
    """Expected tokens: the root's own, and those of the child that is accepted."""
    return 1.0 + sum(
        chance * tokens_of(kid, vector) for chance, kid in zip(vector, shape, strict=False)
    )


@pytest.mark.parametrize(
    "vector", [(0.6, 0.15, 0.07), (0.3, 0.3, 0.3), (0.1, 0.0, 0.5), (0.9, 0.02, 0.01)]
)
def test_sequoia_finds_the_best_of_all_trees(vector: tuple[float, ...]) -> None:
    table = solve(vector, 6, 4)
    for rows, depth in itertools.product(range(1, 8), range(5)):
        every = shapes(rows, depth, FAN)
        best = max((tokens_of(shape, vector) for shape in every), default=-math.inf)
        assert table.tokens[depth, rows] == pytest.approx(best)
        if every:
            found = table.tree(rows, depth)
            assert len(found) == rows - 1
            assert max(map(len, found), default=0) <= depth
            assert tokens_of(shape_of(found), vector) == pytest.approx(best)
            assert breadth_first(children(found)) == found


def shape_of(found: list[Ranks], path: Ranks = ()) -> Shape:
    """A list of paths as nested tuples."""
    below = sorted(other for other in found if other[:-1] == path and len(other) == len(path) + 1)
    assert [other[-1] for other in below] == list(range(len(below))), (
        "siblings must fill up in order"
    )
    return tuple(shape_of(found, other) for other in below)


@given(st.lists(st.floats(0, 0.5), min_size=12, max_size=12), st.floats(0, 0.3), st.floats(0, 2))
def test_sequoia_takes_the_size_and_depth_that_pay(
    steps: list[float], level: float, rate: float
) -> None:
    tokens = solve((0.6, 0.15, 0.07), 12, 5).tokens
    price = np.cumsum([0.0, *steps])
    rows, depth = choose(tokens, Budget(12, 5, 3, price, rate=rate), level)

    def profit(rows: int, depth: int) -> float:
        return float(tokens[depth, rows] - price[rows - 1] - rate * level * depth)

    best = max(profit(rows, depth) for rows in range(1, 14) for depth in range(6))
    assert profit(rows, depth) == pytest.approx(best)


def test_sequoia_grows_its_tree_within_any_budget() -> None:
    for nodes, depth, most in [(10, 4, 3), (10, 1, 3), (10, 9, 1), (2, 2, 2)]:
        tree = run(Sequoia(), Oracle(0, sampled=True), Budget(nodes, depth, most))
        expected = solve(RankAcceptance().vector(most), nodes, depth)
        rows, deep = choose(expected.tokens, Budget(nodes, depth, most), 0.0)
        assert len(tree) == min(rows, 1 + sum(most**level for level in range(1, depth + 1)))
        assert tree.height == deep


def round_of(tree: Tree, path: tuple[int, ...]) -> Outcome:
    return Outcome(tree, tree, Verdict(path, 0), None, 0, StageTimes())  # type: ignore[arg-type]


def test_acceptance_is_counted_by_place() -> None:
    tree = Tree(0)
    record = RankAcceptance()
    tree.extend(ROOT, [1, 2, 3], [0.5, 0.3, 0.1])
    tree.extend(2, [1, 2], [0.5, 0.3])
    tree.extend(4, [1], [0.5])
    record.observe(
        round_of(tree, (0, 2, 4))
    )  # the second of three, the first of two, then none of one
    assert record.tested[:4].tolist() == [3, 2, 1, 0]
    assert record.taken[:4].tolist() == [1, 1, 0, 0]
    assert record.vector(2) == pytest.approx(
        ((1 + TRUST * USUAL[0]) / (3 + TRUST), (1 + TRUST * USUAL[1]) / (2 + TRUST)), abs=1e-3
    )
    assert RankAcceptance().vector(3) == pytest.approx(USUAL[:3], abs=1e-3)
    assert USUAL.sum() < 1


def test_acceptance_is_forgotten_slowly() -> None:
    record = RankAcceptance()
    tree = Tree(0)
    tree.extend(ROOT, [1], [0.5])
    for _ in range(int(tests_of_siblings.MEMORY) + 5):
        record.observe(round_of(tree, (0, 1)))
    assert record.tested[0] <= tests_of_siblings.MEMORY
    for _ in range(3000):
        record.observe(round_of(tree, (0,)))
    assert record.vector(1)[0] < 0.3


def play(policy: Policy, sampling: Sampling, tokens: int) -> list[Outcome]:
    recipe = Recipe(
        DraftModel(model=ToyBackend("draft")),
        policy,
        resolve("suffix").verifier,
        Fixed(nodes=8, depth=3, width=3),
    )
    return list(
        itertools.islice(
            Engine(ToyBackend(context=512), recipe).rounds([0, 1, 2], sampling, KeyedRng(1)), tokens
        )
    )


def test_sequoia_keeps_what_it_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SAPWOOD_CACHE", str(tmp_path))
    play(Sequoia(), Sampling(max_tokens=400), 3 * OFTEN)
    assert not list(tmp_path.rglob("*.json")), "without a word to keep it under, nothing is kept"
    play(Sequoia(store="a drafter"), Sampling(max_tokens=400), OFTEN - 1)
    assert not list(tmp_path.rglob("*.json")), "few rounds are not worth a file"
    play(Sequoia(store="a drafter"), Sampling(max_tokens=400), 3 * OFTEN)
    [path] = tmp_path.rglob("*.json")
    stored = json.loads(path.read_text())
    assert stored["greedy"]["tested"][0] >= 3 * OFTEN
    assert not any(stored["sampled"]["tested"])
    assert breadth_first(stored["children"]["greedy"])
    book = RankAcceptanceFile(ToyBackend().info.model, "a drafter")
    assert book.records["greedy"].tested.tolist() == stored["greedy"]["tested"]
    path.write_text(json.dumps({"greedy": {"tested": [1], "taken": [2]}}))
    assert (
        not RankAcceptanceFile(ToyBackend().info.model, "a drafter").records["greedy"].tested.any()
    )


def test_sequoia_learns_the_shape_that_fits() -> None:
    policy = Sequoia(every=1)
    policy.bind(EngineContext(ToyBackend(), flat(), no_loader))
    shapes_seen = []
    for taken in (0, 2):
        policy.reset(request())
        tree = Tree(0)
        tree.extend(ROOT, [1, 2, 3], [0.5, 0.3, 0.1])
        for _ in range(200):
            policy.observe(round_of(tree, (0, taken + 1)))
        shapes_seen.append(children(policy._within(Budget(6, 6, 3))))
        policy.book = RankAcceptanceFile("other", "")
    assert shapes_seen[0] == [1] * 6  # the first guess is always right: a chain
    assert shapes_seen[1][0] == 3  # it is always the third: no tree without it

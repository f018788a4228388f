"""The policy that grows a fixed tree of ranks, and what its tree is made from."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sapwood import registry
from sapwood.backends.toy import ToyBackend
from sapwood.common.rank_table import measured, rank_tree, usual
from sapwood.controllers.fixed import Fixed
from sapwood.core.protocols import EngineContext
from sapwood.core.rng import KeyedRng
from sapwood.core.sampling import Sampling
from sapwood.core.types import BackendInfo, Draw
from sapwood.drafters.compose.draft_model import DraftModel
from sapwood.engine.cost_model import flat
from sapwood.engine.loop import Engine, no_loader
from sapwood.errors import SapwoodError
from sapwood.policies.rank_paths import RankPaths, breadth_first
from sapwood.recipe import Recipe
from sapwood.recipes import resolve
from sapwood.testing import check_part, law_error
from sapwood.train.hydra import HydraObjective
from sapwood.train.medusa import MedusaObjective
from sapwood.train.ranks import measure
from sapwood.train.ranks import save as save_ranks
from sapwood.verifiers.match import Match
from sapwood.verifiers.rrs import Rrs
from tests.helpers.head_training import batch_of, random_head, teacher
from tests.helpers.reference_heads import states_of

EAGLE_TREE = [4, 3, 2, 2, 1, 3, 2, 2, 1, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 2]


def slow_rank_tree(chances: list[list[float]], nodes: int) -> set[tuple[int, ...]]:
    """Add the best child that is absent, looking at all of them each time."""
    found: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(nodes):
        absent = {
            (*path, rank): worth * chance
            for path, worth in found.items()
            if len(path) < len(chances)
            for rank, chance in enumerate(chances[len(path)])
            if (*path, rank) not in found
        }
        best = max(absent, key=lambda path: absent[path])
        found[best] = absent[best]
    return set(found) - {()}


@pytest.mark.parametrize("seed", range(4))
def test_rank_trees_are_those_of_a_slow_search(seed: int) -> None:
    rng = np.random.default_rng(seed)
    chances = [np.sort(rng.random(6))[::-1].tolist() for _ in range(4)]
    assert set(rank_tree(chances, 30)) == slow_rank_tree(chances, 30)
    assert set(rank_tree(usual(), 63)) == slow_rank_tree(usual(), 63)


def test_a_rank_is_never_followed_before_the_one_above_it() -> None:
    tree = rank_tree([[0.3, 0.1, 0.4], [0.2, 0.5]], 9)
    for path in tree:
        assert path[-1] == 0 or (*path[:-1], path[-1] - 1) in tree
    assert rank_tree([], 5) == rank_tree([[]], 5) == []
    assert rank_tree([[0.5, 0.2], []], 5) == [(0,), (1,)]


def test_eagles_own_tree_can_be_spelled() -> None:
    paths = breadth_first(EAGLE_TREE)
    assert len(paths) == 25
    assert max(map(len, paths)) == 5
    assert sum(len(path) == 1 for path in paths) == 4
    assert {(0, 2, 1), (3, 0), (1, 0, 0), (0, 0, 0, 2), (0, 0, 0, 0, 1)} <= set(paths)
    with pytest.raises(SapwoodError, match="leave out what follows the first 2"):
        bind_policy(RankPaths(children=[1, 0, 1]))
    with pytest.raises(SapwoodError, match=r"children\[1\]=-1 must be at least 0"):
        RankPaths(children=[2, -1])


def test_the_recipe_draws_as_eagle_does_and_keeps_the_law() -> None:
    recipe = resolve("eagle")
    assert recipe.drafter.draws is Draw.SWOR
    assert recipe.verifier == Rrs()
    assert recipe.policy == RankPaths(children=EAGLE_TREE)
    drafter = DraftModel(model=ToyBackend("draft"), draws=Draw.SWOR)
    small = Recipe(drafter, RankPaths(children=[2, 1, 0]), Rrs(), Fixed(3, 2, 2))
    assert law_error(small, horizon=2) <= 1e-12


def bind_policy(policy: RankPaths) -> RankPaths:
    policy.bind(EngineContext(ToyBackend(), flat(), no_loader))
    return policy


def test_the_tree_comes_from_what_was_measured(tmp_path: Path) -> None:
    table = [[0.9, 0.05], [0.8, 0.01], [0.7, 0.0]]
    save_ranks(tmp_path, table)
    assert measured(str(tmp_path), ToyBackend().info) == table
    assert bind_policy(RankPaths(nodes=4, head=str(tmp_path))).paths == [
        (0,),
        (0, 0),
        (0, 0, 0),
        (1,),
    ]
    assert measured("nothing", ToyBackend().info) is None
    assert bind_policy(RankPaths(nodes=63, head="nothing")).paths == rank_tree(usual(), 63)
    (tmp_path / "ranks.json").write_text(json.dumps({"a": 1}))
    with pytest.raises(SapwoodError, match="is no table of numbers"):
        measured(str(tmp_path), ToyBackend().info)


@pytest.mark.parametrize(
    "course",
    [MedusaObjective(heads=2, vocabulary=40), HydraObjective(heads=2, inner=24, vocabulary=40)],
)
def test_ranks_are_counted_over_all_words_of_the_answers(course: Any) -> None:
    guide = teacher()
    head = random_head(course, guide)
    batches = [batch_of(course, guide, [0, 1]), batch_of(course, guide, [2])]
    hits = np.zeros((2, 4))
    words = 0
    for batch in batches:
        for text, (start, length) in enumerate(
            zip(batch.answers.tolist(), batch.lengths.tolist(), strict=True)
        ):
            for place in range(start, length):
                words += 1
                for step in (step for step in range(2) if place - 2 - step >= 0):
                    state = states_of(
                        head, guide.embedding, batch, text, place - 2 - step, step + 1
                    )[step]
                    best = head.vocabulary[
                        (guide.head[head.vocabulary] @ state).topk(4).indices
                    ].tolist()
                    if int(batch.tokens[text, place]) in best:
                        hits[step, best.index(int(batch.tokens[text, place]))] += 1
    assert np.array(measure(head, guide, batches, ranks=4)) == pytest.approx(hits / words)
    assert hits.all()


@pytest.mark.parametrize(
    "policy", [RankPaths(), RankPaths(nodes=7), RankPaths(children=EAGLE_TREE)], ids=str
)
def test_sparse_keeps_the_contract_of_policies(policy: RankPaths) -> None:
    registry.lookup("policy", "rank-paths")  # gives the class its name
    check_part("policy", policy)


@pytest.mark.parametrize(
    ("budget", "sizes"),
    [
        (Fixed(nodes=25, depth=5, width=4), [1, 4, 8, 8, 3, 2]),
        (Fixed(nodes=6, depth=5, width=4), [1, 4, 2]),
        (Fixed(nodes=25, depth=2, width=4), [1, 4, 8]),
        (Fixed(nodes=25, depth=5, width=1), [1, 1, 1, 1, 1, 1]),
    ],
    ids=str,
)
def test_the_grown_tree_is_the_rank_tree_within_the_budget(budget: Fixed, sizes: list[int]) -> None:
    recipe = Recipe(
        DraftModel(model=ToyBackend("draft", vocab=7)),
        RankPaths(children=EAGLE_TREE),
        Match(),
        budget,
    )
    tree = next(Engine(ToyBackend(vocab=7), recipe).rounds([0, 1, 2], Sampling(), KeyedRng(0))).tree
    assert [len(tree.level(depth)) for depth in range(tree.height + 1)] == sizes


@pytest.mark.parametrize("kind", ["medusa", "hydra"])
def test_shipped_heads_have_trees_of_their_own_ranks(kind: str) -> None:
    table = measured(kind, BackendInfo("torch", "smollm2", 49_152, 8192))
    assert table is not None
    assert [len(level) for level in table] == [10] * len(table)
    assert all(0 < sum(level) < 1 for level in table)
    own = rank_tree(table, 63)
    assert set(own) != set(rank_tree(usual(), 63))
    policy = resolve(kind).policy
    assert isinstance(policy, RankPaths)
    assert policy.head == kind

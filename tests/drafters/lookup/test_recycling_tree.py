"""Token Recycling's own tree: a fixed template that is filled by rank, level by level."""

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np
import pytest

from sapwood.backends.toy import ToyBackend
from sapwood.core.protocols import EngineContext, RequestContext
from sapwood.core.rng import KeyedRng
from sapwood.core.sampling import Sampler, Sampling
from sapwood.core.tree import ROOT, Tree
from sapwood.core.types import Budget
from sapwood.engine.cost_model import flat
from sapwood.engine.loop import Engine, no_loader
from sapwood.policies.rank_paths import named
from sapwood.recipe import Recipe
from sapwood.recipes import resolve
from sapwood.testing import law_error

VOCAB = 60
PROMPT = [3, 1, 4]
NAMES = ("recycling", "recycling-best")


def grown(recipe: Recipe, rows: Mapping[int, Sequence[int]], chances: Sequence[float]) -> Tree:
    """The tree after token 4, with these successors stored for every token."""
    target = ToyBackend(vocab=VOCAB)
    drafter: Any
    drafter, policy = recipe.drafter, recipe.policy
    for part in (drafter, policy):
        part.bind(EngineContext(target, flat(), no_loader))
    for token, successors in rows.items():
        drafter.successors[token] = successors
        drafter.logps[token] = np.log(chances)
        drafter.written[token] = True
    drafter.reset(RequestContext(PROMPT, Sampler(Sampling(), PROMPT), target.open([])))
    tree, budget = Tree(PROMPT[-1]), Budget(80, 6, 8)
    while frontier := policy.frontier(tree, budget):
        drafter.expand(tree, frontier, KeyedRng(0))
        for node, _ in frontier:
            tree.close(node)
    return policy.prune(tree, budget)


def successors(token: int) -> list[int]:
    return [(5 * token + rank + 1) % VOCAB for rank in range(8)]


ALL = {token: successors(token) for token in range(VOCAB)}


@pytest.mark.parametrize("chances", [[0.9, *[0.01] * 7], [0.13] * 7 + [0.05]])
def test_the_tree_is_the_papers_whatever_is_likely(chances: list[float]) -> None:
    tree = grown(resolve("recycling"), ALL, chances)
    ranks = named(tree)
    paths = set(ranks.values()) - {()}
    assert len(paths) == 80
    assert [sum(len(path) == depth for path in paths) for depth in range(1, 7)] == [
        8, 21, 25, 15, 8, 3,
    ]  # fmt: skip
    assert {(7,), (0, 7), (7, 0), (0, 7, 0), (0, 0, 4, 0), (0, 0, 0, 1, 0, 0)} <= paths
    assert not {(4, 1), (6, 0, 0), (0, 0, 0, 0, 0, 2)} & paths
    for node, path in ranks.items():
        if node != ROOT:
            parent = int(tree.tokens[tree.parents[node]])
            assert tree.tokens[node] == successors(parent)[path[-1]]


def test_the_other_form_follows_the_stored_probabilities() -> None:
    sure, flat_row = (
        grown(resolve("recycling-best"), ALL, chances)
        for chances in ([0.9, *[0.01] * 7], [0.125] * 8)
    )
    assert (sure.height, flat_row.height) == (6, 3)


def test_a_token_that_was_never_scored_has_no_children() -> None:
    rows = {4: successors(4), 21: successors(21)}  # 21 is the best successor of 4
    tree = grown(resolve("recycling"), rows, [0.3, *[0.1] * 7])
    assert tree.depths.tolist() == [0, *[1] * 8, *[2] * 8]


@pytest.mark.parametrize("name", NAMES)
def test_both_forms_keep_the_law(name: str) -> None:
    error = law_error(resolve(name), ToyBackend("a"), prompt=(0, 1, 2), rounds=2, horizon=2)
    assert error <= 1e-12


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_both_forms_write_plain_decodings_text(name: str, temperature: float) -> None:
    def text(recipe: str) -> list[int]:
        sampling = Sampling(temperature=temperature, max_tokens=60)
        rounds = Engine(ToyBackend(vocab=9), resolve(recipe)).rounds(PROMPT, sampling, KeyedRng(3))
        return list(islice((token for outcome in rounds for token in outcome.tokens), 20))

    assert text(name) == text("plain")

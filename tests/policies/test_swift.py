"""SWIFT's tree: the unlikely token stays, siblings by confidence, and the law with drawn siblings."""

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from sapwood.backends.toy import ToyBackend
from sapwood.controllers.fixed import Fixed
from sapwood.core.protocols import RequestContext
from sapwood.core.sampling import Sampler, Sampling
from sapwood.core.tree import ROOT, Tree
from sapwood.core.types import Budget, Draw
from sapwood.drafters.compose.draft_model import DraftModel
from sapwood.errors import SapwoodError
from sapwood.policies.swift import Swift
from sapwood.recipe import Recipe
from sapwood.recipes import resolve
from sapwood.testing import law_error
from sapwood.verifiers.mss import Mss
from sapwood.verifiers.rrs import Rrs

WIDE = Budget(130, 25, 10)


def begin(temperature: float = 0.0, policy: Swift | None = None) -> Swift:
    policy = policy or Swift()
    sampler = Sampler(Sampling(temperature=temperature), [0])
    policy.reset(RequestContext([0], sampler, ToyBackend().open([])))
    return policy


def grown(policy: Swift, firsts: list[float], budget: Budget = WIDE) -> Tree:
    """A tree whose first token at each position has the given probability."""
    tree = Tree(0)
    for first in firsts:
        frontier = policy.frontier(tree, budget)
        if not frontier:
            break
        [(node, width)] = frontier
        rest = [(1 - first) / 20] * (width - 1)
        tree.extend(node, list(range(1, width + 1)), [first, *rest])
        tree.close(node)
    return policy.prune(tree, budget)


def by_level(tree: Tree) -> list[int]:
    return [int((tree.depths == depth).sum()) for depth in range(1, tree.height + 1)]


def test_the_unlikely_token_is_kept_and_ends_the_draft() -> None:
    tree = grown(begin(), [0.99, 0.9, 0.79, 0.99])
    assert tree.height == 3
    assert by_level(tree) == [3, 5, 8]


@pytest.mark.parametrize(
    ("first", "greedy", "sampled"),
    [(0.96, 3, 1), (0.95, 5, 3), (0.81, 5, 3), (0.8, 8, 5), (0.51, 8, 5), (0.5, 10, 10)],
)
def test_siblings_follow_the_confidence(first: float, greedy: int, sampled: int) -> None:
    assert by_level(grown(begin(), [first])) == [greedy]
    assert by_level(grown(begin(temperature=1.0), [first])) == [sampled]


def test_a_small_budget_is_spent_position_by_position() -> None:
    policy = begin()
    assert by_level(grown(policy, [0.9, 0.9, 0.9], Budget(7, 25, 10))) == [5, 2]
    assert by_level(grown(policy, [0.9, 0.9, 0.9], Budget(130, 2, 10))) == [5, 5]
    assert by_level(grown(policy, [0.3], Budget(130, 25, 4))) == [4]
    assert policy.frontier(Tree(0), Budget(0, 0, 0)) == []


def test_options_are_checked() -> None:
    assert by_level(grown(begin(policy=Swift(greedy=[2, 4])), [0.6])) == [4]
    with pytest.raises(SapwoodError, match="must list numbers of children"):
        Swift(greedy=[])
    with pytest.raises(SapwoodError, match="at least 1"):
        Swift(sampled=[1, 3, 0, 10])


FEW: dict[str, Any] = {"stop": 0.4, "greedy": [1, 2, 2, 3], "sampled": [1, 1, 2, 3]}


@pytest.mark.parametrize(("draws", "verifier"), [(Draw.SWOR, Rrs()), (Draw.IID, Mss())])
def test_drawn_siblings_keep_the_law(draws: Draw, verifier: Any) -> None:
    drafter = DraftModel(model=ToyBackend("draft"), draws=draws)
    recipe = Recipe(drafter, Swift(**FEW), verifier, Fixed(6, 2, 3))
    assert law_error(recipe, horizon=2) <= 1e-12


@dataclass
class DropsUnlikely(Swift):
    """Leaves the unlikely token out, as the rule must not."""

    prunes: ClassVar[Any] = Swift.prunes

    def prune(self, tree: Tree, budget: Budget) -> Tree:
        kept = super().prune(tree, budget)
        first = kept.children(ROOT)[0]
        return kept if kept.probs[first] >= self.stop else kept.keep([])


def test_leaving_the_unlikely_token_out_would_be_noticed() -> None:
    drafter = DraftModel(model=ToyBackend("draft"), draws=Draw.SWOR)
    recipe = Recipe(drafter, DropsUnlikely(**FEW), Rrs(), Fixed(6, 2, 3))
    assert law_error(recipe, horizon=2) > 1e-3


def test_the_recipe_is_swifts() -> None:
    recipe = resolve("swift")
    assert str(recipe) == (
        "self-skip(search=bayes) + swift + match + fixed(nodes=130, depth=25, width=10)"
    )

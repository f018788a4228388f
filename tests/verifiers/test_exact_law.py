"""Multi-draft verifiers on hard cases: twins, holes, rest symbols, several drafters; the law is exact."""

from typing import Any

import pytest

from sapwood.backends.toy import ToyBackend
from sapwood.controllers.fixed import Fixed
from sapwood.core.protocols import Drafter, Verifier
from sapwood.core.sampling import Sampling
from sapwood.core.types import Draw
from sapwood.drafters.compose.draft_model import DraftModel
from sapwood.drafters.compose.merge import Merge
from sapwood.policies.chain import Chain
from sapwood.policies.static import Static
from sapwood.recipe import Recipe
from sapwood.testing import expected_tokens, law_error
from sapwood.verifiers.block import Block
from sapwood.verifiers.khisti import Khisti
from sapwood.verifiers.kseq import Kseq
from sapwood.verifiers.optimal import Optimal
from sapwood.verifiers.optimal_iid import OptimalIid
from sapwood.verifiers.spechub import SpecHub
from sapwood.verifiers.traversal import Traversal
from sapwood.verifiers.traversal_iid import TraversalIid
from tests.helpers.verifier_recipes import EXACT, recipe

NEW: list[tuple[Draw, Verifier]] = [
    (Draw.IID, Kseq(shape=[2, 1])),
    (Draw.MIXED, SpecHub()),
    (Draw.IID, Block()),
    (Draw.SWOR, Block()),
    (Draw.SWOR, Traversal()),
    (Draw.MIXED, Traversal()),
    (Draw.TOPK, Traversal()),
    (Draw.IID, TraversalIid()),
    (Draw.SWOR, Optimal()),
    (Draw.MIXED, Optimal()),
    (Draw.IID, OptimalIid()),
    (Draw.IID, Khisti()),
]
each = pytest.mark.parametrize(("draws", "verifier"), NEW, ids=str)


@each
def test_a_draft_that_is_the_target_is_taken_whole(draws: Draw, verifier: Verifier) -> None:
    """Residuals have no mass here: nothing may be divided by it, and nothing drawn is refused."""
    twin = recipe(draws, verifier, [1, 1] if isinstance(verifier, Block) else [2, 1], draft="same")
    assert law_error(twin, ToyBackend("same")) <= EXACT
    if draws in (Draw.IID, Draw.SWOR):
        assert expected_tokens(twin, ToyBackend("same")) == pytest.approx(3, abs=1e-9)


@each
def test_wide_groups_with_twins_keep_the_law(draws: Draw, verifier: Verifier) -> None:
    """Three draws over three tokens: independent ones repeat, others exhaust q."""
    assert law_error(recipe(draws, verifier, [3]), ToyBackend("wide"), horizon=2) <= EXACT


SUPPORTS = [
    Sampling(temperature=1.0, top_k=1, max_tokens=4),  # one-hot laws, often disjoint
    Sampling(temperature=1.0, top_k=2, max_tokens=4),  # q is exhausted by two draws
    Sampling(temperature=0.5, min_p=0.4, repetition_penalty=1.6, max_tokens=4),
    Sampling(temperature=0.0, presence_penalty=0.5, max_tokens=4),
]


@pytest.mark.parametrize("sampling", SUPPORTS, ids=range(len(SUPPORTS)))
@each
def test_laws_with_holes_keep_the_law(draws: Draw, verifier: Verifier, sampling: Sampling) -> None:
    assert law_error(recipe(draws, verifier, [2, 1]), ToyBackend("holes"), sampling) <= EXACT


@each
def test_two_rounds_keep_the_law(draws: Draw, verifier: Verifier) -> None:
    """Coins of the first round at positions that it did not decide must not be thrown again."""
    assert (
        law_error(recipe(draws, verifier, [2]), ToyBackend("rounds"), rounds=2, horizon=3) <= EXACT
    )
    if isinstance(verifier, Block | Traversal):  # the others throw none
        assert (
            law_error(recipe(draws, verifier, [1, 1]), ToyBackend("rounds"), rounds=2, horizon=3)
            <= EXACT
        )


@pytest.mark.parametrize("verifier", [Block(), Traversal(), TraversalIid()], ids=str)
def test_long_chains_keep_the_law(verifier: Verifier) -> None:
    draws = Draw.IID if Draw.IID in verifier.accepts else Draw.SWOR
    drafter = DraftModel(model=ToyBackend("draft"), draws=draws)
    chain = Recipe(drafter, Chain(), verifier, Fixed(nodes=3, depth=3, width=1))
    assert law_error(chain, ToyBackend("long"), horizon=4) <= EXACT


@pytest.mark.parametrize("tokens", [1, 2])
@pytest.mark.parametrize(
    ("draws", "shape"),
    [(Draw.IID, [2]), (Draw.SWOR, [2]), (Draw.SWOR, [3]), (Draw.MIXED, [3])],
    ids=str,
)
def test_a_rest_symbol_keeps_the_law(tokens: int, draws: Draw, shape: list[int]) -> None:
    for rule in (OptimalIid, Khisti) if draws is Draw.IID else (Optimal,):
        coarse = recipe(draws, rule(shape=shape, tokens=tokens), shape, vocab=4)
        assert law_error(coarse, ToyBackend("rest", vocab=4), horizon=2) <= EXACT


@pytest.mark.parametrize("shape", [[1], [3, 1]], ids=str)
@pytest.mark.parametrize(
    ("draws", "rule"),
    [(Draw.IID, Kseq), (Draw.IID, OptimalIid), (Draw.IID, Khisti), (Draw.SWOR, Optimal)],
    ids=str,
)
def test_a_shape_that_is_not_the_trees_costs_tokens_but_not_the_law(
    draws: Draw, rule: Any, shape: list[int]
) -> None:
    wrong = recipe(draws, rule(shape=shape), [2])
    right = recipe(draws, rule(shape=[2]), [2])
    assert law_error(wrong, ToyBackend("shape"), horizon=2) <= EXACT
    assert expected_tokens(wrong, ToyBackend("shape")) < expected_tokens(right, ToyBackend("shape"))


def toys(*kinds: Draw, vocab: int = 3) -> list[Drafter]:
    """Draft models that differ, one for each kind of draws."""
    return [
        DraftModel(model=ToyBackend(f"draft {index}", vocab=vocab), draws=kind)
        for index, kind in enumerate(kinds)
    ]


@pytest.mark.parametrize(
    ("kinds", "verifier"),
    [
        ((Draw.IID, Draw.IID), Kseq(shape=[1])),
        ((Draw.IID, Draw.IID), TraversalIid()),
        ((Draw.IID, Draw.IID), OptimalIid(shape=[1])),
        ((Draw.IID, Draw.IID), Khisti(shape=[1])),
        ((Draw.SWOR, Draw.SWOR), Traversal()),
        ((Draw.SWOR, Draw.SWOR), Optimal(shape=[1])),
        ((Draw.TOPK, Draw.SWOR), Traversal()),
        ((Draw.TOPK, Draw.SWOR), Optimal(shape=[2])),
        ((Draw.TOPK, Draw.SWOR), SpecHub()),
    ],
    ids=str,
)
def test_several_drafters_keep_the_law(kinds: tuple[Draw, ...], verifier: Verifier) -> None:
    for shape, vocab in (([1], 3), ([1, 1], 2)):
        drafters = Merge(drafters=toys(*kinds, vocab=vocab))
        both = Recipe(drafters, Static(shape=shape), verifier, Fixed(nodes=8, depth=2, width=1))
        assert law_error(both, ToyBackend("a", vocab=vocab)) <= EXACT


@pytest.mark.parametrize("verifier", [SpecHub(), Traversal(), Optimal(shape=[3])], ids=str)
def test_choices_of_one_drafter_may_be_draws_of_another(verifier: Verifier) -> None:
    """The second drafter chooses after the first has drawn, and may choose what was drawn."""
    drafters = Merge(drafters=toys(Draw.MIXED, Draw.MIXED))
    both = Recipe(drafters, Static(shape=[2]), verifier, Fixed(nodes=8, depth=1, width=2))
    assert law_error(both, ToyBackend("a"), horizon=2) <= EXACT

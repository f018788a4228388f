"""Every recipe that can be built has the target's exact law; every one that cannot would be biased."""

import dataclasses

import pytest

from sapwood.backends.toy import ToyBackend
from sapwood.controllers.ema import Ema
from sapwood.controllers.fixed import Fixed
from sapwood.controllers.goodput import Goodput
from sapwood.controllers.heuristic import Heuristic
from sapwood.core.protocols import Controller, Drafter, Verifier
from sapwood.core.sampling import Sampling
from sapwood.core.types import Draw, Guarantee
from sapwood.drafters.compose.draft_model import DraftModel
from sapwood.drafters.compose.merge import Merge
from sapwood.drafters.lookup.ngram import Ngram
from sapwood.drafters.lookup.recycling import Recycling
from sapwood.drafters.lookup.suffix import Suffix
from sapwood.errors import SapwoodError, Unsound
from sapwood.policies.static import Static
from sapwood.recipe import Recipe
from sapwood.testing import law_error
from sapwood.verifiers.match import Match
from sapwood.verifiers.mixed import Mixed
from sapwood.verifiers.mss import Mss
from sapwood.verifiers.rrs import Rrs
from tests.helpers.legal_recipes import ILLEGAL, LEGAL, SMALL, combine
from tests.helpers.part_factory import toy_recipes

EXACT = 1e-12


def budget(draws: Draw, policy: str, verifier: str) -> Fixed:
    """Independent draws come out in most ways: a node less leaves a third of them.

    Rules that keep the text do not look at how a token was drawn; two nodes show that.
    """
    if draws is not Draw.IID:
        return SMALL
    return Fixed(nodes=2 if verifier in ("match", "naive") else 3, depth=2, width=2)


def spelled(combination: tuple[Draw, str, str]) -> str:
    draws, policy, verifier = combination
    return f"{draws.value}-{policy}-{verifier}"


@pytest.mark.parametrize("combination", LEGAL, ids=spelled)
def test_every_legal_combination_has_the_targets_law(combination: tuple[Draw, str, str]) -> None:
    recipe = combine(*combination, budget(*combination))
    assert recipe.guarantee in (Guarantee.TEXT, Guarantee.LAW)
    assert law_error(recipe, ToyBackend("a")) <= EXACT


@pytest.mark.parametrize("salt", "bc")
@pytest.mark.parametrize(
    "combination", [row for row in LEGAL if row[1] in ("chain", "static")], ids=spelled
)
def test_the_law_holds_on_other_targets(combination: tuple[Draw, str, str], salt: str) -> None:
    assert law_error(combine(*combination), ToyBackend(salt)) <= EXACT


@pytest.mark.parametrize("draws", Draw, ids=str)
def test_illegal_combinations_cannot_be_built(draws: Draw) -> None:
    combinations = [row for row in ILLEGAL if row[0] is draws]
    assert combinations
    for combination in combinations:
        with pytest.raises(Unsound, match="use "):
            combine(*combination)


@pytest.mark.parametrize(
    "controller",
    [
        Heuristic(start=1, most=2, nodes=4, width=2),
        Ema(most=2, nodes=3, width=2),
        Goodput(nodes=3, depth=2, width=2),
    ],
    ids=str,
)
@pytest.mark.parametrize(
    ("draws", "policy", "verifier"),
    [
        (Draw.TOPK, "best", "match"),
        (Draw.TOPK, "beam", "naive"),
        (Draw.SWOR, "groups", "rrs"),
        (Draw.IID, "chain", "speculative"),
        (Draw.MIXED, "groups", "mixed"),
    ],
)
def test_adaptive_budgets_keep_the_law_over_two_rounds(
    draws: Draw, policy: str, verifier: str, controller: Controller
) -> None:
    recipe = combine(draws, policy, verifier, controller)
    assert law_error(recipe, rounds=2, horizon=3) <= EXACT


@pytest.mark.parametrize(
    ("draws", "verifier"),
    [(Draw.IID, Mss()), (Draw.SWOR, Rrs()), (Draw.MIXED, Mixed())],
    ids=lambda value: str(value),
)
def test_wide_trees_keep_the_law(draws: Draw, verifier: Mss | Rrs | Mixed) -> None:
    recipe = Recipe(
        DraftModel(model=ToyBackend("draft", vocab=4), draws=draws),
        Static(shape=[3]),
        verifier,
        Fixed(width=3),
    )
    assert law_error(recipe, ToyBackend("wide", vocab=4), horizon=2) <= EXACT


SAMPLINGS = [
    Sampling(temperature=0.7, max_tokens=4),
    Sampling(temperature=1.0, top_k=2, max_tokens=4),
    Sampling(temperature=1.3, top_p=0.8, max_tokens=4),
    Sampling(temperature=1.0, min_p=0.3, max_tokens=4),
    Sampling(temperature=1.0, repetition_penalty=1.5, max_tokens=4),
    Sampling(temperature=1.0, frequency_penalty=0.7, presence_penalty=0.4, max_tokens=4),
    Sampling(temperature=1.0, logit_bias={1: 1.5}, banned=[2], max_tokens=4),
    Sampling(temperature=1.0, min_tokens=2, stop_ids=[0], max_tokens=4),
    Sampling(temperature=0.0, repetition_penalty=1.5, max_tokens=4),
]


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=range(len(SAMPLINGS)))
@pytest.mark.parametrize(
    ("draws", "policy", "verifier"),
    [
        (Draw.TOPK, "best", "match"),
        (Draw.SWOR, "static", "rrs"),
        (Draw.IID, "static", "mss"),
        (Draw.MIXED, "static", "mixed"),
    ],
)
def test_every_sampling_option_applies_along_the_path(
    sampling: Sampling, draws: Draw, policy: str, verifier: str
) -> None:
    assert law_error(combine(draws, policy, verifier), sampling=sampling) <= EXACT


def toys(*kinds: Draw) -> list[Drafter]:
    """Draft models that differ, one for each kind of draws."""
    return [
        DraftModel(model=ToyBackend(f"draft {index}"), draws=kind)
        for index, kind in enumerate(kinds)
    ]


@pytest.mark.parametrize(
    ("drafters", "verifier"),
    [
        (toys(Draw.IID, Draw.IID), Mss()),
        (toys(Draw.SWOR, Draw.SWOR), Rrs()),
        (toys(Draw.TOPK, Draw.SWOR), Mixed()),
        (toys(Draw.TOPK, Draw.MIXED), Mixed()),
        ([Ngram(), Recycling(draws=Draw.SWOR)], Mixed()),
        ([Suffix(), *toys(Draw.TOPK)], Match()),
    ],
    ids=str,
)
def test_merged_drafters_keep_the_law(drafters: list[Drafter], verifier: Verifier) -> None:
    recipe = Recipe(
        Merge(drafters=drafters), Static(shape=[1, 1]), verifier, Fixed(nodes=8, depth=2, width=1)
    )
    assert law_error(recipe, ToyBackend("a"), prompt=(0, 1, 2, 0, 1)) <= EXACT


UNTRAINED = toy_recipes()


@pytest.mark.parametrize(
    "name", [name for name, made in UNTRAINED.items() if made.guarantee is not Guarantee.LOSSY]
)
def test_every_named_recipe_keeps_its_guarantee(name: str) -> None:
    recipe = UNTRAINED[name]
    rounds = 2
    if recipe.drafter.draws is not Draw.TOPK:  # draws multiply the ways that a round can come out
        recipe = dataclasses.replace(recipe, controller=Fixed(nodes=4, depth=2, width=2))
        rounds = 1
    assert (
        law_error(recipe, ToyBackend("a"), prompt=(0, 1, 2, 0, 1), rounds=rounds, horizon=2)
        <= EXACT
    )


def test_greedy_verifier_refuses_sampling() -> None:
    recipe = combine(Draw.TOPK, "best", "greedy")
    with pytest.raises(SapwoodError, match="use match"):
        law_error(recipe)
    assert law_error(recipe, sampling=Sampling(max_tokens=4)) == 0

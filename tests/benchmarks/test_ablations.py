"""Every ablation can be built, names a recipe once, and keeps drafter and budget where it says so."""

from collections import Counter

import pytest
from benchmarks.ablations import (
    ABLATIONS,
    CONTROLLERS,
    ELSEWHERE,
    LOSSY,
    STOPS,
    TREES,
    Ablation,
)

from sapwood.core.types import Guarantee
from sapwood.recipes import RECIPES, resolve

# rows whose claim is about the drafter itself
OTHER_DRAFTER = {"hydra", "hedge", "minions"}


def test_a_recipe_has_one_row_or_a_reason() -> None:
    counts = Counter([one.recipe for one in ABLATIONS] + list(ELSEWHERE))
    assert set(counts.values()) == {1}
    assert set(counts) <= set(RECIPES)


def drafts_of(spelling: str) -> str:
    """The drafter's name, with the one that the built-in model has for `auto-head`."""
    word = str(resolve(spelling).drafter).partition("(")[0]
    return "eagle3" if word == "auto-head" else word


@pytest.mark.parametrize("one", [*STOPS, *CONTROLLERS, *TREES], ids=lambda one: one.recipe)
def test_both_sides_have_the_same_drafter(one: Ablation) -> None:
    if one.recipe not in OTHER_DRAFTER:
        assert drafts_of(one.on) == drafts_of(one.off)
    assert resolve(one.on) != resolve(one.off)


@pytest.mark.parametrize("one", LOSSY, ids=lambda one: one.recipe)
def test_lossy_rules_stand_beside_lossless_ones(one: Ablation) -> None:
    assert resolve(one.on).guarantee is Guarantee.LOSSY
    assert resolve(one.off).guarantee is not Guarantee.LOSSY

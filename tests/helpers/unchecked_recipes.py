"""Recipes that skip the soundness check."""

from typing import Any

from sapwood.backends.toy import ToyBackend
from sapwood.controllers.fixed import Fixed
from sapwood.core.types import Draw
from sapwood.drafters.compose.draft_model import DraftModel
from sapwood.recipe import Recipe


def unchecked(draws: Draw, policy: Any, verifier: Any) -> Recipe:
    """A recipe that skips the soundness check, to show what the check prevents."""
    recipe = object.__new__(Recipe)
    parts = {
        "drafter": DraftModel(model=ToyBackend("draft"), draws=draws),
        "policy": policy,
        "verifier": verifier,
    }
    for slot, part in {**parts, "controller": Fixed(nodes=2, depth=2, width=2)}.items():
        object.__setattr__(recipe, slot, part)
    object.__setattr__(recipe, "bind", lambda setting: bind_unchecked(recipe, setting))
    return recipe


def bind_unchecked(recipe: Recipe, setting: Any) -> Recipe:
    for part in recipe.parts():
        part.bind(setting)
    return recipe

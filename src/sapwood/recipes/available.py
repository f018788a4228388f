"""Recipes that can run on a model: it provides their inputs, and their heads were trained for it."""

from collections.abc import Iterable

from sapwood.common.drafter_store import has
from sapwood.core.part import Part
from sapwood.core.types import BackendInfo
from sapwood.recipes import FAMILIES, RECIPES, resolve
from sapwood.recipes.entry import NamedRecipe

FAMILY_OF = {entry.name: title for title, entries in FAMILIES.items() for entry in entries}


def is_trained(entry: NamedRecipe, info: BackendInfo) -> bool:
    """True when a recipe needs no training, or its part was trained for or with this model."""
    given = entry.training == "none" or entry.training in info.provides
    return given or has(entry.training, info.model, info.weights)


def can_run(name: str, info: BackendInfo) -> bool:
    """True when a model has all that a named recipe needs; imports the recipe's parts."""
    if not is_trained(RECIPES[name], info):
        return False
    return all(
        part.needs <= info.provides
        and (not part.trained or has(part.trained, info.model, info.weights))
        for part in with_nested(resolve(name).parts())
    )


def with_nested(parts: Iterable[Part]) -> list[Part]:
    """These parts and all those inside them."""
    found = list(parts)
    for part in found:
        found.extend(part.nested())
    return found

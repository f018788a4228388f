"""The parts of a recipe, nested ones included, and their names."""

from sapwood import registry
from sapwood.core.part import Part
from sapwood.recipe import Recipe
from sapwood.recipes.available import with_nested


def parts(recipe: Recipe) -> list[Part]:
    """All parts of a recipe, nested ones included."""
    return with_nested(recipe.parts())


def drafters(recipe: Recipe) -> set[str]:
    """Names of all drafters of a recipe: of its own and of those inside it."""
    return {registry.name_of(part) for part in with_nested(recipe.parts()[:1])}

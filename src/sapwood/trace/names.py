"""What the parts of a recipe are called, also those that were made by hand or as another's default."""

from sapwood import methods
from sapwood.part import Part
from sapwood.recipe import Recipe


def called(part: object) -> str:
    """The name of a part in the table of methods; of one that is not there, its class's."""
    kind = type(part)
    home = f"{kind.__module__}:{kind.__qualname__}"
    return next((key.partition(".")[2] for key, place in methods.TABLE.items() if place == home), kind.__name__.lower())


def parts(recipe: Recipe) -> list[Part]:
    """All parts of a recipe, nested ones included."""
    found = list(recipe.parts())
    for part in found:
        found.extend(part.nested())
    return found


def drafters(recipe: Recipe) -> set[str]:
    """Names of all drafters of a recipe."""
    return {called(part) for part in parts(recipe) if hasattr(part, "expand")}

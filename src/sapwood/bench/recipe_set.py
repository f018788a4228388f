"""The recipes of a benchmark, each with an engine of its own over the one loaded target."""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sapwood.controllers.fixed import Fixed
from sapwood.core.part import option_value
from sapwood.core.types import Guarantee
from sapwood.engine.loop import Engine
from sapwood.errors import SapwoodError
from sapwood.recipe import Recipe
from sapwood.recipes import RECIPES, resolve

if TYPE_CHECKING:
    from sapwood.llm import LLM

PLAIN = "plain"  # the recipe that all others are compared with


@dataclass
class RecipeSet:
    """Engines by recipe name, and the reason for each recipe that cannot run."""

    engines: dict[str, Engine] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)

    def drop(self, name: str, error: SapwoodError) -> None:
        """Remove a recipe that failed; raise for plain decoding, the baseline of all."""
        if name == PLAIN:
            raise SapwoodError(f"plain decoding failed: {error}") from error
        del self.engines[name]
        self.skipped[name] = f"failed while decoding: {error}"


def read_recipes(text: str) -> dict[str, bool]:
    """Recipes by name or spelling, plain decoding first; True if named explicitly.

    `all` stands for every named recipe, `lossless` for those that promise the text or the law.
    """
    names = split(text)
    if not names:
        raise SapwoodError(
            f"recipes {text!r} names none; known: {', '.join(RECIPES)}, or `all` of them, "
            "or `lossless` ones"
        )
    asked = {PLAIN: True}
    for name in names:
        if name in ("all", "lossless"):
            asked = {**dict.fromkeys(named(lossy=name == "all"), False), **asked}
        else:
            resolve(name)  # a misspelling fails before anything slow
            asked[name] = True
    return {PLAIN: True, **asked}


def named(*, lossy: bool) -> list[str]:
    """The named recipes, those that change the target's distribution only if `lossy`."""
    return [name for name in RECIPES if lossy or resolve(name).guarantee is not Guarantee.LOSSY]


def split(text: str) -> list[str]:
    """The pieces between commas and semicolons outside brackets."""
    pieces = [""]
    depth = 0
    for mark in text:
        depth += (mark in "([") - (mark in ")]")
        if mark in ",;" and depth <= 0:
            pieces.append("")
        else:
            pieces[-1] += mark
    return [piece.strip() for piece in pieces if piece.strip()]


def with_node_budget(name: str, nodes: int | None) -> str | Recipe:
    """The recipe with `nodes` nodes every round; unchanged if None, or for plain decoding."""
    if nodes is None or name == PLAIN:
        return name
    recipe: Any = resolve(name)
    own = recipe.controller
    depth = option_value(own, "depth", Fixed.depth)
    width = option_value(own, "width", Fixed.width)
    made: Recipe = dataclasses.replace(
        recipe, controller=Fixed(nodes=nodes, depth=depth, width=width)
    )
    return made


def assemble(
    llm: "LLM",
    asked: Mapping[str, bool],
    nodes: int | None = None,
    progress: Callable[[str], None] = lambda _: None,  # receives a line about what takes long
) -> RecipeSet:
    """An engine for each recipe; raise if one that was named explicitly cannot run."""
    made = RecipeSet()
    for place, (name, required) in enumerate(asked.items(), 1):
        progress(f"preparing recipe {place} of {len(asked)}")
        try:
            made.engines[name] = llm.with_recipe(with_node_budget(name, nodes)).engine
        except SapwoodError as error:
            if required:
                raise SapwoodError(
                    f"recipe {name!r} cannot run on {llm.target.info.model}: {error}"
                ) from error
            made.skipped[name] = str(error)
    return made

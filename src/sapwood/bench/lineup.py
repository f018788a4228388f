"""Which recipes a benchmark runs, each with an engine of its own over the one loaded target."""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sapwood.controllers.fixed import Fixed
from sapwood.engine import Engine
from sapwood.errors import SapwoodError
from sapwood.recipe import Recipe
from sapwood.recipes import RECIPES, resolve

if TYPE_CHECKING:
    from sapwood.api import LLM

PLAIN = "plain"  # the recipe that all others are compared with


@dataclass
class Lineup:
    """Engines by the recipe's name, and why the others could not be made."""

    engines: dict[str, Engine] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)

    def drop(self, name: str, error: SapwoodError) -> None:
        """Go on without a recipe that failed; not without plain decoding, which all are compared with."""
        if name == PLAIN:
            raise SapwoodError(f"plain decoding failed: {error}") from error
        del self.engines[name]
        self.skipped[name] = f"failed while decoding: {error}"


def read_recipes(text: str) -> dict[str, bool]:
    """Recipes by name or spelling, plain decoding first; True where one was asked for by itself, not by `all`."""
    names = split(text)
    if not names:
        raise SapwoodError(f"recipes {text!r} names none; known: {', '.join(RECIPES)}, or `all` of them")
    asked = {PLAIN: True}
    for name in names:
        if name == "all":
            asked = {**dict.fromkeys(RECIPES, False), **asked}
        else:
            resolve(name)  # before anything slow: a misspelling fails at once
            asked[name] = True
    return {PLAIN: True, **asked}


def split(text: str) -> list[str]:
    """The pieces between commas and semicolons that stand outside brackets."""
    pieces, depth = [""], 0
    for mark in text:
        depth += (mark in "([") - (mark in ")]")
        if mark in ",;" and depth <= 0:
            pieces.append("")
        else:
            pieces[-1] += mark
    return [piece.strip() for piece in pieces if piece.strip()]


def evened(name: str, nodes: int | None) -> str | Recipe:
    """The recipe, where `nodes` is given with that many nodes every round; plain decoding stays as it is."""
    if nodes is None or name == PLAIN:
        return name
    recipe: Any = resolve(name)
    own = recipe.controller
    depth, width = getattr(own, "depth", Fixed.depth), getattr(own, "width", Fixed.width)
    made: Recipe = dataclasses.replace(recipe, controller=Fixed(nodes=nodes, depth=depth, width=width))
    return made


def assemble(
    llm: "LLM",
    asked: Mapping[str, bool],
    nodes: int | None = None,
    progress: Callable[[str], None] = lambda _: None,  # told what takes long
) -> Lineup:
    """An engine for each recipe; one that was asked for by itself must be able to run."""
    made = Lineup()
    for place, (name, required) in enumerate(asked.items(), 1):
        progress(f"preparing recipe {place} of {len(asked)}")
        try:
            made.engines[name] = llm.with_recipe(evened(name, nodes)).engine
        except SapwoodError as error:
            if required:
                raise SapwoodError(f"recipe {name!r} cannot run on {llm.target.info.model}: {error}") from error
            made.skipped[name] = str(error)
    return made

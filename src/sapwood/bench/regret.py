"""How much slower a recipe was than the best one could have done by choosing one fixed recipe in hindsight.

The best fixed recipe is that of the most tokens per second on these very prompts, among those whose budget never
changes and that keep plain decoding's law; plain decoding is one of them. Below zero, a recipe beat them all.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from sapwood.bench.rows import Row
from sapwood.controllers.fixed import Fixed
from sapwood.recipe import Recipe
from sapwood.records import Guarantee


def with_regret(rows: Sequence[Row], recipes: Mapping[str, Recipe]) -> list[Row]:
    """The rows with their regret, each against the others of its category and setting."""
    fixed = {name for name, recipe in recipes.items() if is_fixed(recipe)}
    made = []
    for row in rows:
        rivals = [other for other in rows if other.recipe in fixed and same_prompts(row, other) and other.speedup]
        best = max(rivals, key=lambda other: other.speedup or 0.0, default=None)
        if best is None or not row.speedup:
            made.append(row)
            continue
        made.append(replace(row, regret=(best.speedup or 0.0) / row.speedup - 1, best_fixed=best.recipe))
    return made


def is_fixed(recipe: Recipe) -> bool:
    """True where every round has the same budget and the output keeps its law."""
    return isinstance(recipe.controller, Fixed) and recipe.guarantee is not Guarantee.LOSSY


def same_prompts(row: Row, other: Row) -> bool:
    """True where two rows were measured on the same prompts under the same setting."""

    def place(it: Row) -> tuple[object, ...]:
        return it.category, it.temperature, it.context, it.batch

    return place(row) == place(other)

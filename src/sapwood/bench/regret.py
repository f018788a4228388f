"""Regret of a recipe against the best fixed recipe on the same prompts.

The best fixed recipe has the most tokens per second on these very prompts, among those whose budget
never changes and that keep plain decoding's distribution; plain decoding is one of them. A regret
below zero means that the recipe was faster than all of them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from sapwood.bench.rows import ReportRow
from sapwood.controllers.fixed import Fixed
from sapwood.core.types import Guarantee
from sapwood.recipe import Recipe


def with_regret(rows: Sequence[ReportRow], recipes: Mapping[str, Recipe]) -> list[ReportRow]:
    """The rows with their regret, each against the others of its category and setting."""
    fixed = {name for name, recipe in recipes.items() if is_fixed(recipe)}
    made = []
    for row in rows:
        candidates = [
            other
            for other in rows
            if other.recipe in fixed and same_prompts(row, other) and other.speedup
        ]
        best = max(candidates, key=lambda other: other.speedup or 0.0, default=None)
        if best is None or not row.speedup:
            made.append(row)
            continue
        made.append(
            replace(row, regret=(best.speedup or 0.0) / row.speedup - 1, best_fixed=best.recipe)
        )
    return made


def is_fixed(recipe: Recipe) -> bool:
    """True if every round has the same budget and the recipe is not lossy."""
    return isinstance(recipe.controller, Fixed) and recipe.guarantee is not Guarantee.LOSSY


def same_prompts(row: ReportRow, other: ReportRow) -> bool:
    """True if two rows were measured on the same prompts in the same setting."""

    def place(it: ReportRow) -> tuple[object, ...]:
        return it.category, it.temperature, it.context, it.batch

    return place(row) == place(other)

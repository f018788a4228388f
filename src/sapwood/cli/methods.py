"""`sapwood methods`: every part, every named recipe, and the systems without one."""

import dataclasses
import enum
import json
from typing import TYPE_CHECKING, Any

from sapwood.cli import options as o

if TYPE_CHECKING:
    from rich.table import Table

WIDE = 140  # columns without a terminal
# attributes that a part of each family declares
DECLARED = {"drafter": ("draws",), "policy": ("prunes",), "verifier": ("accepts", "guarantee")}


def command(as_json: o.AsJson = False) -> None:
    """List parts, named recipes (paper, guarantee, needs, fidelity), and systems without one."""
    record = {"parts": parts(), "recipes": recipes(), "without_recipe": without_recipe()}
    if as_json:
        print(json.dumps(record))
    else:
        tables(record)


def parts() -> list[dict[str, Any]]:
    """A row for each part."""
    from sapwood import registry
    from sapwood.core.part import Part, default_of, options, spell

    def row(family: str, name: str, made: type[Part]) -> dict[str, Any]:
        part = made()
        declared = {key: plain(getattr(part, key)) for key in DECLARED.get(family, ())}
        return {
            "family": family,
            "name": name,
            "paper": made.paper,
            "summary": (made.__doc__ or "").strip().split("\n")[0],
            **declared,
            "needs": plain(part.needs),
            "options": {option.name: spell(default_of(option)) for option in options(part)},
        }

    return [row(*entry) for entry in registry.everything()]


def recipes() -> list[dict[str, Any]]:
    """A row for each named recipe."""
    from sapwood.recipe import parse
    from sapwood.recipes import RECIPES
    from sapwood.recipes.entry import NamedRecipe

    def row(entry: NamedRecipe) -> dict[str, Any]:
        made = parse(entry.recipe)
        return {
            "name": entry.name,
            "system": entry.system,
            "paper": entry.paper,
            "recipe": entry.recipe,
            "guarantee": made.guarantee.value,
            "training": entry.training,
            "fidelity": entry.fidelity.value,
            "note": entry.note,
            # drafters that are used on a model for which nothing was trained
            "stand_ins": [name for part in made.parts() for name in part.stand_ins],
        }

    return [row(entry) for entry in RECIPES.values()]


def without_recipe() -> list[dict[str, Any]]:
    """A row for each system of the surveys that has no recipe."""
    from sapwood.recipes.without import SYSTEMS

    return [dataclasses.asdict(system) for system in SYSTEMS]


def plain(value: Any) -> Any:
    """Enums and sets as JSON values."""
    if isinstance(value, enum.Enum):
        return value.value
    return sorted(plain(item) for item in value) if isinstance(value, frozenset) else value


def tables(record: dict[str, list[dict[str, Any]]]) -> None:
    """Print the record as tables."""
    from rich.console import Console

    console = Console()
    if not console.is_terminal:
        console = Console(width=WIDE)
    parted = [
        [row["family"], row["name"], row["paper"], declared(row), row["summary"]]
        for row in record["parts"]
    ]
    console.print(table("parts", ["family", "name", "paper", "declares", "what it does"], parted))
    keys = ["name", "system", "paper", "guarantee", "fidelity", "training", "recipe"]
    console.print(table("recipes", keys, [[row[key] for key in keys] for row in record["recipes"]]))
    keys = ["name", "system", "paper", "why"]
    missing = [[row[key] for key in keys] for row in record["without_recipe"]]
    console.print(table("systems without a recipe", keys, missing))


def declared(row: dict[str, Any]) -> str:
    """The declared attributes of a part, in short."""
    from sapwood.core.types import Draw

    items = [row[key] for key in DECLARED.get(row["family"], ())] + [row["needs"]]
    words = [
        "any" if len(item) == len(Draw) and isinstance(item, list) else item
        for item in items
        if item
    ]
    return ", ".join("|".join(word) if isinstance(word, list) else word for word in words)


def table(title: str, heads: list[str], rows: list[list[str]]) -> "Table":
    """A table whose last column takes the remaining width."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    made = Table(title=title, box=box.SIMPLE, pad_edge=False, expand=True, title_justify="left")
    for head in heads[:-1]:
        made.add_column(head, no_wrap=True, max_width=24)
    made.add_column(heads[-1], ratio=1)
    for row in rows:
        made.add_row(*map(Text, row))
    return made

"""`sapwood methods`: every part and every named recipe."""

import enum
import json
from typing import TYPE_CHECKING, Any

from sapwood.cli import options as o

if TYPE_CHECKING:
    from rich.table import Table

WIDE = 140  # columns where there is no terminal
# what a part of each family declares
DECLARED = {"drafter": ("draws",), "policy": ("prunes",), "verifier": ("accepts", "guarantee")}


def command(as_json: o.AsJson = False) -> None:
    """List every part and every named recipe, with paper, guarantee and needs."""
    record = {"parts": parts(), "recipes": recipes()}
    if as_json:
        print(json.dumps(record))  # noqa: T201
    else:
        tables(record)


def parts() -> list[dict[str, Any]]:
    """A row for each part."""
    from sapwood import methods
    from sapwood.part import Part, default_of, options, spell

    def row(family: str, name: str, made: type[Part]) -> dict[str, Any]:
        part = made()
        declared = {key: plain(getattr(part, key)) for key in DECLARED.get(family, ())}
        return {
            "family": family,
            "name": name,
            "paper": made.paper,
            "summary": (made.__doc__ or "").strip().split("\n")[0],
            **declared,
            "needs": plain(getattr(part, "needs", frozenset())),
            "options": {option.name: spell(default_of(option)) for option in options(part)},
        }

    return [row(*entry) for entry in methods.everything()]


def recipes() -> list[dict[str, Any]]:
    """A row for each named recipe."""
    from sapwood.recipe import parse
    from sapwood.recipes import RECIPES

    return [
        {
            "name": entry.name,
            "system": entry.system,
            "paper": entry.paper,
            "recipe": entry.recipe,
            "guarantee": parse(entry.recipe).guarantee.value,
            "training": entry.training,
        }
        for entry in RECIPES.values()
    ]


def plain(value: Any) -> Any:
    """Enums and sets as JSON has them."""
    if isinstance(value, enum.Enum):
        return value.value
    return sorted(plain(item) for item in value) if isinstance(value, frozenset) else value


def tables(record: dict[str, list[dict[str, Any]]]) -> None:
    """The same for reading."""
    from rich.console import Console

    console = Console()
    if not console.is_terminal:
        console = Console(width=WIDE)
    parted = [[row["family"], row["name"], row["paper"], declared(row), row["summary"]] for row in record["parts"]]
    console.print(table("parts", ["family", "name", "paper", "declares", "what it does"], parted))
    keys = ["name", "system", "paper", "guarantee", "training", "recipe"]
    console.print(table("recipes", keys, [[row[key] for key in keys] for row in record["recipes"]]))


def declared(row: dict[str, Any]) -> str:
    """What a part declares, in few words."""
    from sapwood.records import Draw

    items = [row[key] for key in DECLARED.get(row["family"], ())] + [row["needs"]]
    words = ["any" if len(item) == len(Draw) and isinstance(item, list) else item for item in items if item]
    return ", ".join("|".join(word) if isinstance(word, list) else word for word in words)


def table(title: str, heads: list[str], rows: list[list[str]]) -> "Table":
    """A table whose last column takes the room that is left."""
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

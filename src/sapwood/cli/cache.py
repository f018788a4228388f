"""`sapwood cache`: list what the cache holds, and remove entries."""

import json
from typing import Annotated

import typer

from sapwood.cli import options as o

Remove = Annotated[
    list[str] | None,
    typer.Option("--remove", help="Remove the entry of this name; may be given several times."),
]


def command(remove: Remove = None, as_json: o.AsJson = False) -> None:
    """List the cache: converted models, trained heads, texts, measurements; or remove entries."""
    from sapwood.common import cache_entries
    from sapwood.common.cache_dir import cache_folder

    found = cache_entries.remove(remove) if remove else cache_entries.entries()
    total = sum(entry.size for entry in found)
    if as_json:
        rows = [
            {"name": one.name, "what": one.what, "bytes": one.size, "used": one.used}
            for one in found
        ]
        key = "removed" if remove else "entries"
        typer.echo(json.dumps({"folder": str(cache_folder()), key: rows, "bytes": total}))
        return
    for entry in found:
        size = cache_entries.spell_size(entry.size)
        used = cache_entries.spell_age(entry.used)
        typer.echo(f"{size:>9}  {entry.name}  ({entry.what}, used {used})")
    done = "removed" if remove else f"in {cache_folder()}"
    typer.echo(f"{cache_entries.spell_size(total):>9}  {len(found)} entries {done}")

"""`sapwood list`: list the models that are on this machine."""

import json

import typer

from sapwood.cli import options as o


def command(as_json: o.AsJson = False) -> None:
    """List the models on this machine, with their sizes and trained heads."""
    from sapwood.backends.torch.resolve_model import BUILT_IN, WHEEL, WHEEL_FILE
    from sapwood.common.cache_entries import spell_size
    from sapwood.common.local_models import local_models

    found = local_models((BUILT_IN, WHEEL, WHEEL_FILE))
    if as_json:
        rows = [
            {
                "name": model.name,
                "place": model.place,
                "bytes": model.size,
                "heads": list(model.heads),
                "path": str(model.path),
            }
            for model in found
        ]
        typer.echo(json.dumps({"models": rows}))
        return
    for model in found:
        heads = f", trained: {', '.join(model.heads)}" if model.heads else ""
        typer.echo(f"{spell_size(model.size):>9}  {model.name}  ({model.place}{heads})")
    if not found:
        typer.echo("no models are here; `sapwood pull MODEL` fetches one")

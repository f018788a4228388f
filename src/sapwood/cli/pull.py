"""`sapwood pull`: fetch a model, so that later commands need no network."""

from pathlib import Path
from typing import Annotated

import typer

ModelName = Annotated[str, typer.Argument(help="smollm2 (built in), a Hub id or a .gguf file.")]


def command(model: ModelName) -> None:
    """Download a model from the Hub, or prepare a GGUF file, for later commands."""
    from sapwood.backends.torch.resolve_model import (
        check,
        download,
        find_folder,
        find_gguf,
        is_hub_id,
    )
    from sapwood.cli import render
    from sapwood.common.cache_entries import spell_size
    from sapwood.common.local_models import weight_bytes
    from sapwood.errors import SapwoodError

    check(model, None, None)
    place: Path
    if is_hub_id(model):
        place = Path(download(model, render.print_dim, bars=True))
    elif (file := find_gguf(model)) is not None:
        from sapwood.backends.torch.load import load_any

        with render.progress() as progress:
            place = load_any(model, progress=progress)[1]
        if not weight_bytes(place):  # the file is read as it is
            place = file
    else:
        place = Path(find_folder(model, render.print_dim))
    size = place.stat().st_size if place.is_file() else weight_bytes(place)
    if not size:
        raise SapwoodError(f"{model} has no safetensors or GGUF weights; use another model")
    typer.echo(f"{model} is here: {spell_size(size)} in {place}")

"""`sapwood profile`: measure this machine."""

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sapwood.cli import options as o

if TYPE_CHECKING:
    from sapwood.llm import LLM

Quick = Annotated[
    bool, typer.Option("--quick", help="Measure fewer sizes and contexts, in a few seconds.")
]

Keep = Annotated[
    bool,
    typer.Option("--keep", help="Keep the result even if other programs kept the machine busy."),
]


def command(
    model: o.Name = "smollm2",
    backend: o.BackendName = None,
    device: o.Device = None,
    dtype: o.Dtype = None,
    threads: o.Threads = None,
    quick: Quick = False,
    keep: Keep = False,
    as_json: o.AsJson = False,
) -> None:
    """Measure how long a pass takes, by nodes and context; recipes size their trees by it."""
    from sapwood.cli import render

    with render.progress() as progress:
        llm = o.ModelChoice(
            model, "plain", backend=backend, device=device, dtype=dtype, threads=threads
        ).open(progress)
        llm.profile.measure(llm.target, progress, quick=quick, keep_busy=keep)
    found = record(llm)
    if as_json:
        print(json.dumps(found))
    else:
        table(found)


def record(llm: "LLM") -> dict[str, Any]:
    """The record that `--json` prints."""
    info = llm.target.info
    profile = llm.profile
    kept = profile.disturbance is None
    return {
        "model": info.model,
        "backend": info.name,
        "device": info.device,
        "dtype": info.dtype,
        "threads": info.threads,
        "path": str(profile.path) if kept and profile.path.is_file() else None,
        "disturbance": profile.disturbance,
        **llm.profile.curve.to_json(),
    }


def table(found: dict[str, Any]) -> None:
    """Print milliseconds by rows and context, each with its ratio to one row."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    title = f"{found['model']} on {found['device']}, {found['dtype']}, {found['threads']} threads"
    shown = Table("rows", box=box.SIMPLE, title=f"milliseconds of a pass, {title}")
    for context in found["contexts"]:
        shown.add_column(f"context {context}", justify="right")
    for column, rows in enumerate(found["rows"]):
        cells = [
            f"{1000 * line[column]:.1f}  {line[column] / line[0]:5.2f}x"
            for line in found["seconds"]
        ]
        shown.add_row(str(rows), *cells)
    console = Console()
    console.print(shown)
    kept = "not kept: the folder cannot be written; set SAPWOOD_CACHE"
    if found["path"]:
        kept = f"kept in {found['path']}"
    elif found["disturbance"]:
        kept = "not kept: try again on a quiet machine, or keep it with --keep"
    console.print(kept, markup=False, highlight=False, soft_wrap=True)

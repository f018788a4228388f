"""`sapwood bench`: methods side by side in one run."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sapwood.cli import options as o

if TYPE_CHECKING:
    from sapwood.bench.plan import Plan

RECIPES = "Names or spellings, separated by commas or semicolons; `all` is every named recipe. plain always runs."
SUITE = "Built in: chat, copy, edit, random; or JSONL files of turns, prompt or messages. Several by commas."
LIMIT = "At most so many prompts, spread evenly over the categories. [default: all]"
IGNORE_EOS = "Decode past the end of the text, so that all runs are equally long; what follows is often an easy loop."
NODES = "Give every recipe so many nodes a round, in place of its own controller; for tokens per pass at equal size."
BUSY = 0.5  # load per core from which on a machine is called busy
LINES = 10  # of progress where there is no terminal

Recipes = Annotated[str, typer.Option("--recipes", help=RECIPES)]
Suite = Annotated[str, typer.Option("--suite", help=SUITE)]
Categories = Annotated[str, typer.Option("--categories", help="Only these, separated by commas. [default: all]")]
Limit = Annotated[int | None, typer.Option("--limit", help=LIMIT)]
IgnoreEos = Annotated[bool, typer.Option("--ignore-eos", help=IGNORE_EOS)]
Nodes = Annotated[int | None, typer.Option("--nodes", help=NODES)]
JsonFile = Annotated[Path | None, typer.Option("--json", help="Write the record to this file.")]


def command(
    recipes: Recipes = "plain,auto",
    suite: Suite = "chat,copy,edit,random",
    categories: Categories = "",
    limit: Limit = None,
    max_tokens: o.Longest = 64,
    temperature: o.Temperature = None,
    seed: o.Seed = None,
    ignore_eos: IgnoreEos = False,
    nodes: Nodes = None,
    model: o.Name = "smollm2",
    backend: o.BackendName = None,
    device: o.Device = None,
    dtype: o.Dtype = None,
    threads: o.Threads = None,
    json_file: JsonFile = None,
) -> None:
    """Run recipes side by side on the same prompts and compare each with plain decoding."""
    from sapwood.bench.lineup import read_recipes
    from sapwood.bench.plan import Plan, check_place
    from sapwood.bench.suites import gather
    from sapwood.part import between
    from sapwood.sampling import Sampling
    from sapwood.tree import CAPACITY

    if json_file is not None:
        check_place(json_file)
    if nodes is not None:
        between(1, CAPACITY - 1, nodes=nodes)
    wanted = [word.strip() for word in categories.split(",") if word.strip()]
    sampling = Sampling(max_tokens=max_tokens, temperature=temperature or 0.0, seed=seed or 0)
    plan = Plan(read_recipes(recipes), suite, gather(suite, wanted, limit), sampling, ignore_eos, nodes)
    execute(plan, o.Choice(model, "plain", backend=backend, device=device, dtype=dtype, threads=threads), json_file)


def execute(plan: "Plan", choice: o.Choice, json_file: Path | None) -> None:
    """Load the model, run the plan, keep the record and print the tables."""
    from sapwood.bench import provenance, table
    from sapwood.bench.lineup import assemble
    from sapwood.bench.plan import write
    from sapwood.cli import show

    load = provenance.load()
    if load is not None and load > BUSY * (os.cpu_count() or 1):
        show.aside(f"this machine is busy (load {load:.1f} on {os.cpu_count()} cores): expect noise")
    with show.progress() as progress:
        llm = choice.open(progress)
        lineup = assemble(llm, plan.recipes, plan.nodes, progress)
    with llm, bar() as tick:
        rows = plan.run(llm, lineup, tick)
    info = llm.target.info
    try:
        if json_file is not None:
            write(json_file, plan.record(info, rows, load))
            show.aside(f"record in {json_file}")
    finally:  # a disk that is full must not take the table along
        table.show(rows, f"{info.model}, {info.dtype} on {info.device}, {len(plan.prompts)} prompts of {plan.suite}")
    plan.check(lineup)


@contextmanager
def bar() -> Iterator[Callable[[int], None]]:
    """Say on standard error how many runs are done and the time left: a bar on a terminal, a few lines elsewhere."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console, start = Console(stderr=True), time.monotonic()
    columns = (TextColumn("runs"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("runs", total=None)

        def tick(runs: int) -> None:
            progress.update(task, total=runs, advance=1)
            done = int(progress.tasks[0].completed)
            if not console.is_terminal and done * LINES // runs > (done - 1) * LINES // runs:
                left = (time.monotonic() - start) * (runs - done) / done
                console.print(f"sapwood: {done} of {runs} runs, about {left:.0f} s left", highlight=False)

        yield tick

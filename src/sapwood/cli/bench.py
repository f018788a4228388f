"""`sapwood bench`: methods side by side in one run."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sapwood.cli import options as o

if TYPE_CHECKING:
    from sapwood.api import LLM
    from sapwood.bench.contest import Contest
    from sapwood.bench.lineup import Lineup
    from sapwood.bench.plan import Plan
    from sapwood.bench.rivals import Rivals

RECIPES = "Names or spellings, separated by commas or semicolons; `all` is every named recipe. plain always runs."
SUITE = (
    "Built in: chat, copy, edit, json, long, random; or JSONL files of turns, prompt or messages. Several by commas."
)
LIMIT = "At most so many prompts, spread evenly over the categories. [default: all]"
IGNORE_EOS = "Decode past the end of the text, so that all runs are equally long; what follows is often an easy loop."
NODES = "Give every recipe so many nodes a round, in place of its own controller; for tokens per pass at equal size."
TEMPERATURE = "0 takes the best token; several values, separated by commas, are a sweep. [default: 0]"
CONTEXT = "Fill prompts up to so many tokens; several values are a sweep. [default: as they are]"
BATCH = "So many requests share each pass; several values are a sweep. [default: 1]"
PEERS = (
    "Other engines on the same prompts: hf, hf-pld, hf-assisted, llamacpp, llamacpp-pld, llama-server, openvino, vllm,"
)
PEERS += " openai:URL; those not installed have a row that says how to."
ORACLE = "Set each recipe against the best trees of its own drafter, by replay; greedy, one setting, takes a while."
RUNS = "Append every run to this JSONL file. [default: beside the record, else in the cache]"
BUSY = 0.5  # load per core from which on a machine is called busy
LINES = 10  # of progress where there is no terminal

Recipes = Annotated[str, typer.Option("--recipes", help=RECIPES)]
Suite = Annotated[str, typer.Option("--suite", help=SUITE)]
Categories = Annotated[str, typer.Option("--categories", help="Only these, separated by commas. [default: all]")]
Limit = Annotated[int | None, typer.Option("--limit", help=LIMIT)]
IgnoreEos = Annotated[bool, typer.Option("--ignore-eos", help=IGNORE_EOS)]
Nodes = Annotated[int | None, typer.Option("--nodes", help=NODES)]
JsonFile = Annotated[Path | None, typer.Option("--json", help="Write the record to this file.")]
Temperatures = Annotated[str, typer.Option("--temperature", help=TEMPERATURE)]
Contexts = Annotated[str, typer.Option("--context", help=CONTEXT)]
Batches = Annotated[str, typer.Option("--batch", help=BATCH)]
Turns = Annotated[int | None, typer.Option("--turns", help="At most so many turns of a conversation. [default: all]")]
Peers = Annotated[str, typer.Option("--peers", help=PEERS)]
Html = Annotated[Path | None, typer.Option("--html", help="Write a report to look at, one page that needs no network.")]
RunsFile = Annotated[Path | None, typer.Option("--runs", help=RUNS)]
Oracle = Annotated[bool, typer.Option("--oracle", help=ORACLE)]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with an interrupted run: what is written down is kept.")]


def command(
    recipes: Recipes = "plain,auto",
    suite: Suite = "chat,copy,edit,random",
    categories: Categories = "",
    limit: Limit = None,
    turns: Turns = None,
    max_tokens: o.Longest = 64,
    temperature: Temperatures = "",
    context: Contexts = "",
    batch: Batches = "",
    seed: o.Seed = None,
    ignore_eos: IgnoreEos = False,
    nodes: Nodes = None,
    peers: Peers = "",
    oracle: Oracle = False,
    model: o.Name = "smollm2",
    backend: o.BackendName = None,
    device: o.Device = None,
    dtype: o.Dtype = None,
    threads: o.Threads = None,
    json_file: JsonFile = None,
    html: Html = None,
    runs: RunsFile = None,
    resume: Resume = False,
) -> None:
    """Run recipes side by side on the same prompts and compare each with plain decoding."""
    from sapwood.bench.lineup import read_recipes
    from sapwood.bench.plan import Plan, check_place
    from sapwood.bench.suites import gather
    from sapwood.bench.sweep import read_points
    from sapwood.part import between
    from sapwood.peers.table import read_peers
    from sapwood.sampling import Sampling
    from sapwood.tree import CAPACITY

    files = Files(json_file, html, runs, resume)
    for path in filter(None, (json_file, html, runs)):
        check_place(path)
    if nodes is not None:
        between(1, CAPACITY - 1, nodes=nodes)
    wanted = [word.strip() for word in categories.split(",") if word.strip()]
    points = read_points(temperature, context, batch)
    sampling = Sampling(max_tokens=max_tokens, temperature=points[0].temperature, seed=seed or 0)
    prompts = gather(suite, wanted, limit, turns)
    asked = read_recipes(recipes), suite, prompts, sampling, ignore_eos, nodes, points, read_peers(peers), oracle
    plan = Plan(*asked)
    execute(plan, o.Choice(model, "plain", backend=backend, device=device, dtype=dtype, threads=threads), files)


@dataclass(frozen=True)
class Files:
    """Where a benchmark writes."""

    record: Path | None = None
    page: Path | None = None
    runs: Path | None = None
    resume: bool = False


def execute(plan: "Plan", choice: o.Choice, files: Files) -> None:
    """Load the model and the peers, run the plan, keep the record and print the tables."""
    from sapwood.bench import provenance
    from sapwood.bench.journal import Journal
    from sapwood.bench.lineup import assemble
    from sapwood.bench.rivals import Rivals
    from sapwood.cli import show

    load = provenance.load()
    if load is not None and load > BUSY * (os.cpu_count() or 1):
        show.aside(f"this machine is busy (load {load:.1f} on {os.cpu_count()} cores): expect noise")
    rivals = Rivals()
    with ExitStack() as stack:
        stack.callback(rivals.close)
        with show.progress() as progress:
            llm = stack.enter_context(choice.open(progress))
            lineup = assemble(llm, plan.recipes, plan.nodes, progress)
            if files.page is not None and not llm.profile.measured:
                llm.profile.measure(llm.target, progress, quick=True)  # the page shows the curve
            rivals.open(plan.peers, choice.model, llm.target.info, progress)
        info = llm.target.info
        path = plan.journal_path(info, files.runs, files.record)
        journal = Journal(path, plan.mark(info), provenance.origin(info, load), resume=files.resume)
        interrupted = False
        with bar() as tick:
            contest = plan.contest(llm, lineup, rivals, journal, tick)
            try:
                plan.hold(contest, llm)
            except KeyboardInterrupt:
                interrupted = True
        finish(plan, llm, lineup, rivals, contest, files, load)
        if interrupted:
            show.aside(f"interrupted: {len(journal.done)} runs are kept in {path}, --resume goes on from there")
            raise KeyboardInterrupt
    plan.check(lineup)


def finish(
    plan: "Plan",
    llm: "LLM",
    lineup: "Lineup",
    rivals: "Rivals",
    contest: "Contest",
    files: Files,
    load: float | None,
) -> None:
    """Keep the record and the page, and print the tables."""
    from sapwood.bench import table
    from sapwood.bench.page.page import page
    from sapwood.bench.plan import write, write_text
    from sapwood.cli import show

    rows, info = plan.rows(llm, lineup, rivals, contest), llm.target.info
    if not rows:
        return
    with show.progress() as progress:
        rows = plan.foreseen(rows, llm, lineup, contest, progress)
    try:
        if files.record is not None or files.page is not None:
            record = plan.record(llm, rows, contest, load)
        if files.record is not None:
            write(files.record, record)
            show.aside(f"record in {files.record}")
        if files.page is not None:
            write_text(files.page, page(record))
            show.aside(f"report in {files.page}")
    finally:  # a disk that is full must not take the table along
        table.show(rows, f"{info.model}, {info.dtype} on {info.device}, {len(plan.prompts)} prompts of {plan.suite}")


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

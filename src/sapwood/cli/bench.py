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
    from sapwood.bench.benchmark import Benchmark
    from sapwood.bench.peer_runner import PeerSet
    from sapwood.bench.recipe_set import RecipeSet
    from sapwood.bench.runner import BenchRunner
    from sapwood.llm import LLM

RECIPES = (
    "Names or spellings, separated by commas or semicolons; `all` is every named recipe, "
    "`lossless` every one that promises the same text or distribution. "
    "plain always runs."
)
SUITE = (
    "Built in: chat, copy, edit, json, long, random; or JSONL files of turns, prompt or messages. "
    "Several by commas."
)
LIMIT = "At most so many prompts, spread evenly over the categories. [default: all]"
IGNORE_EOS = (
    "Decode past the end of the text, so that all runs are equally long; "
    "what follows the end is often a loop, which is easy to draft."
)
NODES = (
    "Give every recipe so many nodes a round, in place of its own controller; "
    "for tokens per pass at equal size."
)
TEMPERATURE = (
    "0 takes the best token; several values, separated by commas, are a sweep. [default: 0]"
)
CONTEXT = "Fill prompts up to so many tokens; several values are a sweep. [default: as they are]"
BATCH = "So many requests share each pass; several values are a sweep. [default: 1]"
CLIENTS = (
    "So many clients at once, each with one request at a time; several values are a sweep. "
    "Reports tokens per second of all of them and latencies."
)
PEERS = (
    "Other engines on the same prompts: hf, hf-pld, hf-assisted, llamacpp, llamacpp-pld, "
    "llama-server, openvino, vllm, openai:URL; a row says how to install what is missing."
)
ORACLE = (
    "Compare each recipe with the best trees of its own drafter, by replay; "
    "at temperature 0 and in one setting only, and slow."
)
RUNS = "Append every run to this JSONL file. [default: beside the record, else in the cache]"
BUSY = 0.5  # load per core above which a warning is printed
LINES = 10  # lines of progress in all, without a terminal

Recipes = Annotated[str, typer.Option("--recipes", help=RECIPES)]
Suite = Annotated[str, typer.Option("--suite", help=SUITE)]
Categories = Annotated[
    str,
    typer.Option("--categories", help="Only these categories, separated by commas. [default: all]"),
]
Limit = Annotated[int | None, typer.Option("--limit", help=LIMIT)]
IgnoreEos = Annotated[bool, typer.Option("--ignore-eos", help=IGNORE_EOS)]
Nodes = Annotated[int | None, typer.Option("--nodes", help=NODES)]
JsonFile = Annotated[Path | None, typer.Option("--json", help="Write the record to this file.")]
Temperatures = Annotated[str, typer.Option("--temperature", help=TEMPERATURE)]
Contexts = Annotated[str, typer.Option("--context", help=CONTEXT)]
Batches = Annotated[str, typer.Option("--batch", help=BATCH)]
Clients = Annotated[str, typer.Option("--clients", help=CLIENTS)]
Http = Annotated[
    bool, typer.Option("--http", help="With --clients: measure `sapwood serve` over HTTP too.")
]
Turns = Annotated[
    int | None,
    typer.Option("--turns", help="At most so many turns of a conversation. [default: all]"),
]
Peers = Annotated[str, typer.Option("--peers", help=PEERS)]
Html = Annotated[
    Path | None,
    typer.Option("--html", help="Write a report as one HTML page that needs no network."),
]
RunsFile = Annotated[Path | None, typer.Option("--runs", help=RUNS)]
Oracle = Annotated[bool, typer.Option("--oracle", help=ORACLE)]
Resume = Annotated[
    bool,
    typer.Option("--resume", help="Continue an interrupted run; finished parts are kept."),
]


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
    clients: Clients = "",
    http: Http = False,
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
    from sapwood.bench.benchmark import Benchmark, check_place
    from sapwood.bench.recipe_set import read_recipes
    from sapwood.bench.suites import gather
    from sapwood.bench.sweep import read_points
    from sapwood.core.part import between
    from sapwood.core.sampling import Sampling
    from sapwood.core.tree import CAPACITY
    from sapwood.peers.table import read_peers

    files = OutputFiles(json_file, html, runs, resume)
    for path in filter(None, (json_file, html, runs)):
        check_place(path)
    if nodes is not None:
        between(1, CAPACITY - 1, nodes=nodes)
    wanted = [word.strip() for word in categories.split(",") if word.strip()]
    points = read_points(temperature, context, batch)
    sampling = Sampling(max_tokens=max_tokens, temperature=points[0].temperature, seed=seed or 0)
    prompts = gather(suite, wanted, limit, turns)
    plan = Benchmark(
        read_recipes(recipes),
        suite,
        prompts,
        sampling,
        ignore_eos,
        nodes,
        points,
        read_peers(peers),
        oracle,
    )
    choice = o.ModelChoice(
        model, "plain", backend=backend, device=device, dtype=dtype, threads=threads
    )
    if clients or http:
        others = {"--context": context, "--batch": batch, "--peers": peers, "--oracle": oracle}
        others |= {"--nodes": nodes, "--html": html, "--runs": runs, "--resume": resume}
        under_load(plan, clients, choice, json_file, others, http=http)
    else:
        execute(plan, choice, files)


def under_load(
    plan: "Benchmark",
    clients: str,
    choice: o.ModelChoice,
    record: Path | None,
    others: dict[str, object],  # options that --clients does not take, by name
    *,
    http: bool,
) -> None:
    """Run the benchmark of many clients; refuse options that it does not have."""
    from sapwood.bench.clients import read_clients
    from sapwood.cli import bench_clients
    from sapwood.errors import SapwoodError

    levels = read_clients(clients)
    if not levels:
        raise SapwoodError("--http needs --clients, such as --clients 1,8,32")
    given = [name for name, value in others.items() if value not in ("", None, False)]
    if len(plan.points) > 1:
        given.append("several values of --temperature")
    if given:
        raise SapwoodError(f"--clients does not go with {', '.join(given)}; leave them out")
    bench_clients.execute(plan, levels, choice, record, http=http)


@dataclass(frozen=True)
class OutputFiles:
    """Files that a benchmark writes."""

    record: Path | None = None
    page: Path | None = None
    runs: Path | None = None
    resume: bool = False


def execute(plan: "Benchmark", choice: o.ModelChoice, files: OutputFiles) -> None:
    """Load the model and the peers, run the benchmark, write the record and print the tables."""
    from sapwood.bench import provenance
    from sapwood.bench.journal import Journal
    from sapwood.bench.peer_runner import PeerSet
    from sapwood.bench.recipe_set import assemble
    from sapwood.cli import render

    load = provenance.load()
    warn_if_busy(load)
    peer_set = PeerSet()
    with ExitStack() as stack:
        stack.callback(peer_set.close)
        with render.progress() as progress:
            llm = stack.enter_context(choice.open(progress))
            recipe_set = assemble(llm, plan.recipes, plan.nodes, progress)
            if files.page is not None and not llm.profile.measured:
                llm.profile.measure(llm.target, progress, quick=True)  # the page shows the curve
            peer_set.open(plan.peers, choice.model, llm.target.info, progress)
        info = llm.target.info
        path = plan.journal_path(info, files.runs, files.record)
        journal = Journal(path, plan.mark(info), provenance.origin(info, load), resume=files.resume)
        interrupted = False
        with bar() as tick:
            runner = plan.make_runner(llm, recipe_set, peer_set, journal, tick)
            try:
                plan.run(runner, llm)
            except KeyboardInterrupt:
                interrupted = True
        finish(plan, llm, recipe_set, peer_set, runner, files, load)
        if interrupted:
            render.print_dim(
                f"interrupted: {len(journal.done)} runs are kept in {path}, "
                "--resume goes on from there"
            )
            raise KeyboardInterrupt
    plan.check(recipe_set)


def warn_if_busy(load: float | None) -> None:
    """Warn that timings will be noisy if the load of the machine is high before the runs."""
    from sapwood.cli import render

    cores = os.cpu_count() or 1
    if load is not None and load > BUSY * cores:
        render.print_dim(f"this machine is busy (load {load:.1f} on {cores} cores): expect noise")


def finish(
    plan: "Benchmark",
    llm: "LLM",
    recipe_set: "RecipeSet",
    peer_set: "PeerSet",
    runner: "BenchRunner",
    files: OutputFiles,
    load: float | None,
) -> None:
    """Write the record and the page, and print the tables."""
    from sapwood.bench import table
    from sapwood.bench.benchmark import write, write_text
    from sapwood.bench.page.page import page
    from sapwood.cli import render

    rows = plan.rows(llm, recipe_set, peer_set, runner)
    info = llm.target.info
    if not rows:
        return
    with render.progress() as progress:
        rows = plan.with_regrets(rows, llm, recipe_set, runner, progress)
    try:
        if files.record is not None or files.page is not None:
            record = plan.record(llm, rows, runner, load)
        if files.record is not None:
            write(files.record, record)
            render.print_dim(f"record in {files.record}")
        if files.page is not None:
            write_text(files.page, page(record))
            render.print_dim(f"report in {files.page}")
    finally:  # the table is printed also if the disk is full
        title = f"{info.model}, {info.dtype} on {info.device}"
        table.show(rows, f"{title}, {len(plan.prompts)} prompts of {plan.suite}")


@contextmanager
def bar() -> Iterator[Callable[[int], None]]:
    """Report finished runs and the time left on standard error: a bar, or a few lines in a log."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True)
    start = time.monotonic()
    columns = (TextColumn("runs"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as progress:
        task = progress.add_task("runs", total=None)

        def tick(runs: int) -> None:
            progress.update(task, total=runs, advance=1)
            done = int(progress.tasks[0].completed)
            if not console.is_terminal and done * LINES // runs > (done - 1) * LINES // runs:
                left = (time.monotonic() - start) * (runs - done) / done
                console.print(
                    f"sapwood: {done} of {runs} runs, about {left:.0f} s left", highlight=False
                )

        yield tick

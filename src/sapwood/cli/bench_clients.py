"""`sapwood bench --clients`: recipes under load, in this process and over HTTP."""

import secrets
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sapwood.cli import options as o
from sapwood.errors import SapwoodError

if TYPE_CHECKING:
    from pathlib import Path

    from sapwood.bench.benchmark import Benchmark
    from sapwood.bench.clients import ClientRow, ClientRunner
    from sapwood.bench.recipe_set import RecipeSet
    from sapwood.core.sampling import Sampling
    from sapwood.llm import LLM


def execute(
    plan: "Benchmark",
    levels: list[int],
    choice: o.ModelChoice,
    record: "Path | None",
    *,
    http: bool,
) -> None:
    """Load the model, answer at every number of clients, write the record and print the table."""
    from sapwood.bench import provenance
    from sapwood.bench.benchmark import write
    from sapwood.bench.clients import measure_clients, record_of
    from sapwood.bench.recipe_set import assemble
    from sapwood.cli import render
    from sapwood.cli.bench import bar, warn_if_busy

    load = provenance.load()
    warn_if_busy(load)
    with ExitStack() as stack:
        with render.progress() as progress:
            llm = stack.enter_context(choice.open(progress))
            if not llm.profile.measured:
                llm.profile.measure(llm.target, progress, quick=True)
            recipe_set = assemble(llm, plan.recipes, None, progress)
            runners = in_process(plan, llm, recipe_set, max(levels))
            if http:
                progress("starting the server")
                runners += over_http(plan, llm, choice, list(recipe_set.engines), levels, stack)
        prompts = [prompt.tokens(llm.target.info, llm.text) for prompt in plan.prompts]
        with bar() as tick:
            rows = measure_clients(runners, prompts, levels, tick)
        info = llm.target.info
        if record is not None:
            write(record, record_of(provenance.origin(info, load), plan.describe(), rows))
            render.print_dim(f"record in {record}")
    show(rows, f"{info.model}, {info.dtype} on {info.device}, prompts of {plan.suite}")
    plan.check(recipe_set)


def sampling_of(plan: "Benchmark", llm: "LLM") -> "Sampling":
    """The sampling of all requests; texts end at the model's own end unless that is ignored."""
    ends = () if plan.ignore_eos or llm.text is None else llm.text.eos
    return replace(plan.sampling, stop_ids=ends)


def in_process(
    plan: "Benchmark", llm: "LLM", recipe_set: "RecipeSet", most: int
) -> "list[ClientRunner]":
    """A scheduler in this process for every recipe."""
    from sapwood.bench.client_runners import ScheduledClients

    sampling = sampling_of(plan, llm)
    return [
        ScheduledClients(llm, name, engine, sampling, most)
        for name, engine in recipe_set.engines.items()
    ]


def over_http(
    plan: "Benchmark",
    llm: "LLM",
    choice: o.ModelChoice,
    recipes: Sequence[str],
    levels: Sequence[int],
    stack: ExitStack,
) -> "list[ClientRunner]":
    """A server in a process of its own, which answers with every recipe by name."""
    from sapwood.bench.client_runners import HttpClients, ServerProcess, request_body
    from sapwood.bench.clients import TURNS
    from sapwood.common.extras import needed_by

    if llm.text is None:
        raise SapwoodError("--http needs a model with a tokenizer")
    # of a recipe; it is warmed up first, and plain decoding then answers all prompts alone
    runs = len(levels) * TURNS + 2
    keys = {name: [secrets.token_urlsafe(24) for _ in range(runs)] for name in recipes}
    options = server_options(choice, recipes, max(levels))
    with needed_by("sapwood bench --http", "serve"):
        server = ServerProcess(options, [key for own in keys.values() for key in own], max(levels))
    stack.callback(server.close)
    body = request_body(plan.sampling, ignore_eos=plan.ignore_eos)
    runners = [HttpClients(name, server.url, iter(keys[name]), body) for name in recipes]
    first = plan.prompts[0].tokens(llm.target.info, llm.text)
    for runner in runners:
        # the server loads heads and kernels with the first request that names a recipe
        runner.run([first], 1)
    return list(runners)


def server_options(choice: o.ModelChoice, recipes: Sequence[str], most: int) -> list[str]:
    """Command-line options of the server: the same model, these recipes, so many at a time."""
    given: dict[str, Any] = {
        "--model": choice.model,
        "--recipe": "plain",
        "--backend": choice.backend,
        "--device": choice.device,
        "--dtype": choice.dtype,
        "--threads": choice.threads,
        "--together": most,
    }
    named = [
        word for key, value in given.items() if value is not None for word in (key, str(value))
    ]
    return named + [word for name in recipes for word in ("--allow-recipe", name)]


def show(rows: "Sequence[ClientRow]", title: str) -> None:
    """Print the table."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text as Line

    from sapwood.bench.table import FRAME, WIDE, shown

    console = Console(width=None if Console().is_terminal else WIDE)
    table = Table("clients", "way", "recipe", title=title, **FRAME)
    for name in (
        "tokens\nper s",
        "speedup",
        "of turns",
        "first ms",
        "token ms",
        "p99",
        "longest\npause ms",
        "nodes\n/pass",
        "waste",
        "same\ntext",
    ):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            str(row.clients),
            row.way,
            Line(row.recipe),
            f"{row.tokens_per_second:.0f}",
            f"{row.speedup:.2f}x",
            f"{row.speedup_low:.2f}-{row.speedup_high:.2f}",
            f"{row.ttft_ms:.1f}",
            shown(row.tpot_ms, ".2f"),
            shown(row.tpot_p99_ms, ".2f"),
            f"{row.longest_pause_ms:.0f}",
            shown(row.nodes_per_pass, ".1f"),
            shown(row.waste, ".0%"),
            f"{row.identical}/{row.answers}",
        )
    console.print(table)
    legend = (
        "speedup: tokens per second of all clients together against plain decoding's, prefill "
        "included; of turns: its slowest and fastest turn. first: time to the first token; token: "
        "time per token after it, median and 99th percentile of answers."
    )
    console.print(Line(legend, style="dim"))

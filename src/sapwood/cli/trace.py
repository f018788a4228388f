"""`sapwood trace`: record the rounds of a run, look at them in the terminal or on a page."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sapwood.cli import options as o

if TYPE_CHECKING:
    from collections.abc import Sequence

SUITE = "Prompts: chat, copy, edit, random, or JSONL files; several by commas."
TOP = "Best tokens of each distribution that are kept; a replay cannot ask for more."
PROMPT = "Only the rounds of this prompt, counted from 1."
ROUND = "Begin with this round of it, counted from 1."

group = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    help="Record rounds, and look at their trees.",
    invoke_without_command=True,
)

Out = Annotated[Path, typer.Argument(help="The trace to write, JSONL; .gz compresses it.")]
File = Annotated[Path, typer.Argument(help="A trace.")]
Page = Annotated[
    Path | None, typer.Argument(help="The page to write. [default: the trace's name with .html]")
]
Suite = Annotated[str, typer.Option("--suite", help=SUITE)]
Limit = Annotated[
    int | None, typer.Option("--limit", help="At most so many prompts. [default: all]")
]
Top = Annotated[int, typer.Option("--top", help=TOP)]
Which = Annotated[int | None, typer.Option("--prompt", help=PROMPT)]
First = Annotated[int, typer.Option("--round", help=ROUND)]


@group.callback()
def root(context: typer.Context) -> None:
    """Record rounds, and look at their trees."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@group.command("record")
def record(
    out: Out,
    suite: Suite = "chat",
    limit: Limit = None,
    model: o.Name = "smollm2",
    recipe: o.RecipeText = "auto",
    drafter: o.DrafterText = None,
    policy: o.PolicyText = None,
    estimator: o.EstimatorText = None,
    verifier: o.VerifierText = None,
    controller: o.ControllerText = None,
    max_tokens: o.Longest = 64,
    temperature: o.Temperature = None,
    seed: o.Seed = None,
    top: Top = 10,
    backend: o.BackendName = None,
    device: o.Device = None,
    dtype: o.Dtype = None,
    threads: o.Threads = None,
) -> None:
    """Decode the prompts of a suite and record every round."""
    from sapwood.bench.benchmark import check_place
    from sapwood.bench.suites import gather
    from sapwood.cli import render
    from sapwood.cli.bench import bar
    from sapwood.core.part import between
    from sapwood.engine.outputs import collect
    from sapwood.trace.record import opened, traced

    check_place(out)
    between(1, 1000, top=top)
    choice = o.choice_of(locals())
    sampling = o.sampling_of(locals())
    prompts = gather(suite, (), limit)
    with render.progress() as progress:
        llm = choice.open(progress)
    texts = [prompt.tokens(llm.target.info, llm.text) for prompt in prompts]
    with llm, opened(out, llm, choice.title, model, sampling, top) as writer, bar() as tick:
        for prompt, tokens in zip(prompts, texts, strict=True):
            collect(traced(llm, tokens, writer, prompt.name, **sampling))
            tick(len(prompts))
    render.print_dim(f"trace in {out}")


@group.command("view")
def view(trace: File, prompt: Which = None, first: First = 1) -> None:
    """Show the trees of a trace, round by round; on a terminal, page by page."""
    from rich.console import Console

    from sapwood.trace.read import read
    from sapwood.trace.view import pages, show_pages

    found = read(trace)
    shown = pages(found, chosen(len(found.asked), prompt), first)
    show_pages(shown, Console())


@group.command("html")
def html(trace: File, page: Page = None) -> None:
    """Write a page that steps through the text and shows each tree; it needs no network."""
    from sapwood.bench.benchmark import check_place
    from sapwood.cli import render
    from sapwood.trace.page import page as made
    from sapwood.trace.read import read

    out = page or trace.with_name(trace.name.removesuffix(".gz")).with_suffix(".html")
    check_place(out)
    out.write_text(made(read(trace)), encoding="utf-8")
    render.print_dim(f"page in {out}")


def chosen(count: int, prompt: int | None) -> "Sequence[int]":
    """Numbers of the prompts to show."""
    from sapwood.errors import SapwoodError

    if prompt is None:
        return range(count)
    if not 1 <= prompt <= count:
        raise SapwoodError(
            f"--prompt {prompt} is not in the trace, which holds prompts 1 to {count}"
        )
    return [prompt - 1]


def kept(
    llm: Any, choice: o.ModelChoice, path: Path, prompt: str, sampling: dict[str, Any], *, raw: bool
) -> Any:
    """The steps of one request, recorded as they pass."""
    from sapwood.engine.input_processor import read_prompt
    from sapwood.trace.record import opened, traced

    tokens = read_prompt(prompt, llm.target.info, llm.text, raw=raw)
    with opened(path, llm, choice.title, choice.model, sampling) as writer:
        yield from traced(llm, tokens, writer, prompt[:40], **sampling)

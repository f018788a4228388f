"""`sapwood run`: answer one prompt."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sapwood.cli import options as o

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sapwood.api import LLM
    from sapwood.completion import Completion, Step

Prompt = Annotated[str, typer.Argument(help="What to answer; - reads it from standard input.")]
Trace = Annotated[Path | None, typer.Option("--trace", help="Record every round in this file, for `sapwood trace`.")]
Live = Annotated[bool, typer.Option("--live", help="Watch the token tree of every round (on a terminal).")]


def command(
    prompt: Prompt,
    model: o.Name = "smollm2",
    recipe: o.RecipeText = "auto",
    drafter: o.DrafterText = None,
    policy: o.PolicyText = None,
    estimator: o.EstimatorText = None,
    verifier: o.VerifierText = None,
    controller: o.ControllerText = None,
    max_tokens: o.MaxTokens = None,
    temperature: o.Temperature = None,
    top_p: o.TopP = None,
    top_k: o.TopK = None,
    min_p: o.MinP = None,
    repetition_penalty: o.RepetitionPenalty = None,
    frequency_penalty: o.FrequencyPenalty = None,
    presence_penalty: o.PresencePenalty = None,
    stop: o.Stop = None,
    seed: o.Seed = None,
    backend: o.BackendName = None,
    device: o.Device = None,
    dtype: o.Dtype = None,
    threads: o.Threads = None,
    raw: o.Raw = False,
    live: Live = False,
    trace: Trace = None,
    as_json: o.AsJson = False,
) -> None:
    """Answer one prompt and say what speculation did."""
    choice, sampling = o.choice_of(locals()), o.sampling_of(locals())
    answer(choice, read(prompt), sampling, raw=raw, live=live, trace=trace, as_json=as_json)


def answer(
    choice: o.Choice,
    prompt: str,
    sampling: dict[str, Any],
    *,
    raw: bool,
    live: bool,
    trace: Path | None,
    as_json: bool,
) -> None:
    """Open the model, decode, and print the text or the record."""
    from sapwood.cli import show
    from sapwood.cli.trace import kept
    from sapwood.completion import collect
    from sapwood.request import check_options, check_text

    check_options(sampling)  # a wrong option fails before a model is loaded
    check_text(prompt)
    if trace is not None:
        from sapwood.bench.plan import check_place

        check_place(trace)
    with show.progress() as progress:
        llm = choice.open(progress)
        if trace is None:
            steps = llm.stream(prompt, raw=raw, **sampling)
        else:
            steps = kept(llm, choice, trace, prompt, sampling, raw=raw)
    with llm:
        out = collect(steps if as_json else shown(steps, llm, live=live))
    if as_json:
        print(json.dumps(record(llm, out, choice.title)))  # noqa: T201
    else:
        show.aside(show.note(out.stats, choice.title))


def shown(steps: "Iterator[Step]", llm: "LLM", *, live: bool) -> "Iterator[Step]":
    """The same steps, printed as they pass."""
    from rich.console import Console

    from sapwood.cli import show

    console = Console()
    if live and console.is_terminal:
        yield from show.watched(steps, llm.text, console)
    else:
        for step in steps:
            show.write(console, step)
            yield step
    sys.stdout.write("\n")
    sys.stdout.flush()


def record(llm: "LLM", out: "Completion", title: str) -> dict[str, Any]:
    """What `--json` prints."""
    info = llm.target.info
    return {
        "text": out.text,
        "tokens": out.tokens,
        "finish": out.finish,
        "recipe": title,
        "spelling": str(llm.recipe),
        "guarantee": llm.recipe.guarantee.value,
        "model": info.model,
        "device": info.device,
        "dtype": info.dtype,
        "stats": out.stats.to_json(),
    }


def read(prompt: str) -> str:
    """The prompt, from standard input where it is a dash."""
    from sapwood.errors import SapwoodError

    if prompt != "-":
        return prompt
    if sys.stdin is None:
        raise SapwoodError("standard input is closed, and the prompt is -; give a text in its place")
    try:
        return sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError as error:
        raise SapwoodError(f"standard input is not UTF-8 at byte {error.start}; convert it first") from error

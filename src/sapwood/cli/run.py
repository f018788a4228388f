"""`sapwood run`: answer one prompt."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sapwood.cli import options as o

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sapwood.engine.outputs import Completion, Step
    from sapwood.llm import LLM

Prompt = Annotated[str, typer.Argument(help="The prompt; - reads it from standard input.")]
Trace = Annotated[
    Path | None,
    typer.Option("--trace", help="Record every round in this file, for `sapwood trace`."),
]
Live = Annotated[
    bool, typer.Option("--live", help="Show the token tree of every round (on a terminal).")
]


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
    tensor_parallel: o.TensorParallel = 1,
    lora: o.Lora = None,
    raw: o.Raw = False,
    live: Live = False,
    trace: Trace = None,
    as_json: o.AsJson = False,
) -> None:
    """Answer one prompt and report speed and tokens per pass."""
    choice = o.choice_of(locals())
    sampling = o.sampling_of(locals())
    answer(choice, read(prompt), sampling, raw=raw, live=live, trace=trace, as_json=as_json)


def answer(
    choice: o.ModelChoice,
    prompt: str,
    sampling: dict[str, Any],
    *,
    raw: bool,
    live: bool,
    trace: Path | None,
    as_json: bool,
) -> None:
    """Open the model, decode, and print the text or the record."""
    from sapwood.cli import render
    from sapwood.cli.trace import kept
    from sapwood.engine.input_processor import check_options, check_text
    from sapwood.engine.outputs import collect

    check_options(sampling)  # a wrong option fails before a model is loaded
    check_text(prompt)
    if trace is not None:
        from sapwood.bench.benchmark import check_place

        check_place(trace)
    with render.progress() as progress:
        llm = choice.open(progress)
        if trace is None:
            steps = llm.stream(prompt, raw=raw, **sampling)
        else:
            steps = kept(llm, choice, trace, prompt, sampling, raw=raw)
    with llm:
        steps = announced(steps, llm)
        out = collect(steps if as_json else shown(steps, llm, live=live))
        # measured, where the statistics hold a prediction
        stats = replace(out.stats, speedup=llm.measure_speedup(prompt, out, raw=raw))
        out = replace(out, stats=stats)
    if as_json:
        print(json.dumps(record(llm, out, choice.title)))
    else:
        render.print_dim(render.note(out.stats, choice.title))


def announced(steps: "Iterator[Step]", llm: "LLM") -> "Iterator[Step]":
    """The same steps; a line about the model and its head is printed before the first one."""
    from sapwood.cli import render
    from sapwood.cli.notice import notice

    said = notice(llm)
    for step in steps:
        if said is not None:
            render.print_dim(f"sapwood: {said}")
            said = None
        yield step


def shown(steps: "Iterator[Step]", llm: "LLM", *, live: bool) -> "Iterator[Step]":
    """The same steps, printed as they come."""
    from rich.console import Console

    from sapwood.cli import render

    console = Console()
    if live and console.is_terminal:
        yield from render.watched(steps, llm.text, console)
    else:
        try:
            for step in steps:
                render.write(console, step)
                yield step
        except KeyboardInterrupt:  # what follows begins a line
            end_line()
            raise
    end_line()


def end_line() -> None:
    """End the line of an answer."""
    sys.stdout.write("\n")
    sys.stdout.flush()


def record(llm: "LLM", out: "Completion", title: str) -> dict[str, Any]:
    """The record that `--json` prints."""
    info = llm.target.info
    return {
        "text": out.text,
        "tokens": out.tokens,
        "finish": out.finish,
        "recipe": title,
        "spelling": str(llm.recipe),
        "guarantee": llm.recipe.guarantee.value,
        "substitutes": llm.recipe.substitutes,
        "model": info.model,
        "device": info.device,
        "dtype": info.dtype,
        "stats": out.stats.to_json(),
    }


def read(prompt: str) -> str:
    """The prompt; read from standard input if it is a dash."""
    from sapwood.errors import SapwoodError

    if prompt != "-":
        return prompt
    if sys.stdin is None:
        raise SapwoodError(
            "standard input is closed, and the prompt is -; give a text in its place"
        )
    try:
        return sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError as error:
        raise SapwoodError(
            f"standard input is not UTF-8 at byte {error.start}; convert it first"
        ) from error

"""`sapwood train`: train a drafter for a model on the model's own text, or a predictor."""

import json
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from sapwood.cli import options as o
from sapwood.errors import SapwoodError

Kinds = Annotated[
    list[str],
    typer.Argument(
        help="A drafter to train: eagle3, or with options 'eagle3(unroll=5)', several share the "
        "passes; or a small predictor to fit on a drafter's rounds: specdec++, ldlp, c2t, ltd, "
        "judge, or 'c2t(drafter=recycling)'."
    ),
]
Minutes = Annotated[
    float,
    typer.Option("--minutes", help="Time for everything, writing the training data included."),
]
Steps = Annotated[
    int | None, typer.Option("--steps", help="Train exactly so many steps, however long they take.")
]
Prompts = Annotated[
    Path | None,
    typer.Option("--prompts", help="JSONL of prompts or chat messages for the model to answer."),
]
Tokens = Annotated[
    int | None,
    typer.Option("--tokens", help="Tokens to write as training data. [default: by time]"),
]
Data = Annotated[
    Path | None,
    typer.Option("--data", help="Folder of the training data. [default: in the cache]"),
]
Out = Annotated[
    Path | None,
    typer.Option("--out", help="Folder of the result. [default: where recipes look for it]"),
]
Seed = Annotated[
    int, typer.Option("--seed", help="Seed of the data, its order and the initial weights.")
]


def command(
    kinds: Kinds = ["eagle3"],  # noqa: B006 (typer reads it, nothing changes it)
    model: o.Name = "smollm2",
    minutes: Minutes = 20.0,
    steps: Steps = None,
    prompts: Prompts = None,
    tokens: Tokens = None,
    data: Data = None,
    out: Out = None,
    seed: Seed = 0,
    device: o.Device = None,
    dtype: o.Dtype = None,
    threads: o.Threads = None,
    as_json: o.AsJson = False,
) -> None:
    """Train a drafter on text that the model writes; run again, an interrupted run goes on."""
    check(minutes, steps, tokens, prompts)
    from sapwood.cli.progress import ProgressBars
    from sapwood.train import job as drafters
    from sapwood.train import predictors
    from sapwood.train.job import JobObserver, TrainJob
    from sapwood.train.loop import TrainingStopped
    from sapwood.train.registry import of_predictors

    run = predictors.run if of_predictors(kinds) else drafters.run
    job = TrainJob(
        tuple(kinds),
        model,
        minutes,
        steps,
        prompts,
        tokens,
        data,
        out,
        seed,
        device,
        dtype,
        threads,
    )
    with ProgressBars() as bars, stoppable() as stop:
        try:
            found = run(job, JobObserver(bars.say, bars.data, bars.steps, stop.is_set))
        except TrainingStopped as stopped:
            raise SapwoodError(f"{stopped}; run the same command again to go on") from stopped
    show(found, as_json)


def check(minutes: float, steps: int | None, tokens: int | None, prompts: Path | None) -> None:
    """Raise for invalid options before torch is loaded."""
    if not 0 < minutes < 1e6:
        raise SapwoodError(f"--minutes {minutes:g} must be more than 0")
    for name, value in (("steps", steps), ("tokens", tokens)):
        if value is not None and value < 1:
            raise SapwoodError(f"--{name} {value} must be at least 1")
    if prompts is not None and not prompts.is_file():
        raise SapwoodError(
            f"--prompts {prompts} is no file; "
            "give a JSONL file with a `prompt` or `messages` a line"
        )
    if prompts is not None:
        from sapwood.train.prompts import lines

        list(lines(prompts))  # raises at a bad line


@contextmanager
def stoppable() -> Iterator[threading.Event]:
    """An event that SIGINT or SIGTERM sets; a second signal ends the process at once."""
    stop = threading.Event()
    before: dict[int, Any] = {}

    def handle(number: int, _: Any) -> None:
        stop.set()
        signal.signal(number, before[number])

    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            before[number] = signal.signal(number, handle)
        yield stop
    finally:
        for which, handler in before.items():
            signal.signal(which, handler)


def show(found: list[dict[str, Any]], as_json: bool) -> None:
    """Print one line for each trained part, or a record."""
    if as_json:
        typer.echo(json.dumps({"trained": found}))
        return
    for one in found:
        done = (
            f"{one['steps']} steps"
            if "steps" in one
            else f"{one['rows']} rows of {one['prompts']} prompts"
        )
        typer.echo(
            f"{one['kind']} for {one['model']}: {done} in {one['seconds'] / 60:.1f} minutes, "
            f"loss {one['loss']:.3f}; kept in {one['out']}"
        )
        if (gain := one.get("gain")) is not None:
            typer.echo(
                f"measured on {gain['prompts']} prompts: {gain['speedup']:.2f}x plain decoding, "
                f"{gain['tokens_per_pass']:.2f} tokens per pass; auto without it "
                f"{gain['without']:.2f}x"
            )
        if one.get("set_aside"):
            from sapwood.common.drafter_store import SET_ASIDE

            typer.echo(
                "it is set aside, and recipes go on without it: train it longer, or delete "
                f"{SET_ASIDE} in its folder to use it"
            )

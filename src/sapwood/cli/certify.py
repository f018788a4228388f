"""`sapwood certify`: test that a recipe, or a server, is lossless."""

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sapwood.cli import options as o

if TYPE_CHECKING:
    from sapwood.certify.report import CertifyReport

SUBJECT = "A recipe's name or spelling, or the address of a server: http://HOST:PORT."
REFERENCE = "A server that decodes plainly, to compare with."
OFF = (
    "Fields of a request that turn speculation off in this server, as JSON; "
    '{"speculation": false} in our own.'
)
FIELD = "NAME=VALUE, added to every request, such as repeat_penalty=1.0; repeat it for several."
WITHOUT = (
    "Checks to leave out, separated by commas, such as seed,top_k, where a server does not "
    "promise them. The report names them."
)
SAMPLES = "Sampled answers to each prompt. [default: 256 of a server, 48 of a recipe]"
KEY = "Environment variable that holds the server's key."
MODEL = (
    "The model of a recipe, as in `sapwood run`; or one that the server lists. "
    "[default: smollm2; the first listed]"
)

Subject = Annotated[str, typer.Argument(help=SUBJECT)]
Reference = Annotated[str, typer.Option("--reference", help=REFERENCE)]
Off = Annotated[str, typer.Option("--off", help=OFF)]
Field = Annotated[list[str] | None, typer.Option("--field", help=FIELD)]
Without = Annotated[str, typer.Option("--without", help=WITHOUT)]
Model = Annotated[str, typer.Option("--model", help=MODEL)]
Samples = Annotated[int | None, typer.Option("--samples", help=SAMPLES)]
Prompts = Annotated[int, typer.Option("--prompts", help="Number of prompts, at most 8.")]
Minutes = Annotated[
    float,
    typer.Option("--minutes", help="Time for all checks; those not done by then are left out."),
]
Timeout = Annotated[float, typer.Option("--timeout", help="Seconds of one request.")]
Workers = Annotated[int, typer.Option("--concurrency", help="Requests at the same time.")]
Level = Annotated[
    float, typer.Option("--level", help="Chance that something lossless fails, over all tests.")
]
Slack = Annotated[
    float, typer.Option("--slack", help="Logprobs of a server closer than this are a tie.")
]
KeyName = Annotated[str, typer.Option("--key", help=KEY)]
Toy = Annotated[
    bool, typer.Option("--toy", help="Test a recipe with toy models only; no model is loaded.")
]
Report_ = Annotated[
    Path | None, typer.Option("--report", help="Write the record to this file as well.")
]


def command(
    subject: Subject,
    reference: Reference = "",
    off: Off = "",
    field: Field = None,
    without: Without = "",
    model: Model = "",
    samples: Samples = None,
    prompts: Prompts = 8,
    minutes: Minutes = 10.0,
    timeout: Timeout = 60.0,
    concurrency: Workers = 4,
    level: Level = 0.01,
    slack: Slack = 0.1,
    key: KeyName = "",
    toy: Toy = False,
    backend: o.BackendName = None,
    device: o.Device = None,
    dtype: o.Dtype = None,
    threads: o.Threads = None,
    report_file: Report_ = None,
    as_json: o.AsJson = False,
) -> int:
    """Test whether a recipe, or any OpenAI-compatible server, is lossless."""
    from sapwood.bench.benchmark import check_place, write
    from sapwood.certify.report import FAIL
    from sapwood.core.part import between

    between(1, 8, prompts=prompts)
    between(1e-9, 0.5, level=level)
    between(8, 1_000_000, samples=samples if samples is not None else 8)
    if report_file is not None:
        check_place(report_file)
    given = dict(locals())
    found = of_server(given) if "://" in subject else of_recipe(given)
    if report_file is not None:
        write(report_file, found.to_json())
    show(found, as_json=as_json)
    return 1 if found.verdict == FAIL else 0


def of_server(given: dict[str, Any]) -> "CertifyReport":
    """Test a server."""
    from dataclasses import replace

    from sapwood.certify.client import ServerClient
    from sapwood.certify.context import PROMPTS, CertifyContext
    from sapwood.certify.server import OWN, check_names, examine

    without = [name.strip() for name in given["without"].split(",") if name.strip()]
    check_names(without)
    until = time.monotonic() + 60 * given["minutes"]
    plain = {
        "limit": given["timeout"],
        "until": until,
        "workers": given["concurrency"],
        "key": secret(given["key"]),
    }
    extra = dict(pair(text) for text in given["field"] or [])
    server = ServerClient(given["subject"], given["model"], extra=extra, **plain)
    other = (
        ServerClient(given["reference"], "", extra=extra, **plain) if given["reference"] else None
    )
    server.choose_model()
    if other is None and (given["off"] or server.owner == "sapwood"):
        off = fields(given["off"]) if given["off"] else OWN
        other = replace(server, extra={**extra, **off}, requests=0)
    with status_line() as tick:
        context = CertifyContext(
            server,
            other,
            PROMPTS[: given["prompts"]],
            given["samples"] or 256,
            slack=given["slack"],
            tick=tick,
        )
        return examine(context, given["level"], without)


def of_recipe(given: dict[str, Any]) -> "CertifyReport":
    """Test a recipe."""
    from sapwood.bench.prompts import QUESTIONS
    from sapwood.certify.recipe import RecipeUnderTest, examine
    from sapwood.cli import render as terminal
    from sapwood.engine.input_processor import read_prompt
    from sapwood.recipes import resolve

    recipe = resolve(given["subject"])
    if given["toy"]:
        return examine(given["subject"], None, recipe, given["level"])
    choice = o.ModelChoice(
        given["model"] or "smollm2", given["subject"], **{n: given[n] for n in PLACES}
    )
    with terminal.progress() as progress:
        llm = choice.open(progress)
    info = llm.target.info
    texts = QUESTIONS[: given["prompts"]]
    prompts = [read_prompt(text, info, llm.text, raw=False) for text in texts]
    with llm, status_line() as tick:
        trial = RecipeUnderTest(llm, recipe, prompts, samples=given["samples"] or 48, tick=tick)
        about = {"model": info.model, "device": info.device, "dtype": info.dtype}
        return examine(given["subject"], trial, recipe, given["level"], about)


PLACES = ("backend", "device", "dtype", "threads")


def fields(text: str) -> dict[str, Any]:
    """Fields of a request, from JSON."""
    from sapwood.errors import SapwoodError

    try:
        found = json.loads(text)
    except ValueError as error:
        raise SapwoodError(f"--off {text!r} is not JSON ({error}); write an object") from error
    if not isinstance(found, dict):
        raise SapwoodError(f"--off {text!r} must be an object, as in '{{\"speculation\": false}}'")
    return found


def pair(text: str) -> tuple[str, Any]:
    """A field and its value, which is JSON or else a string."""
    from sapwood.errors import SapwoodError

    name, sign, value = text.partition("=")
    if not (name and sign):
        raise SapwoodError(f"--field {text!r} must be NAME=VALUE, such as repeat_penalty=1.0")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def secret(name: str) -> str:
    """The key in an environment variable."""
    from sapwood.errors import SapwoodError

    if name and name not in os.environ:
        raise SapwoodError(
            f"--key {name}: there is no such environment variable; set it to the server's key"
        )
    return os.environ[name] if name else ""


@contextmanager
def status_line() -> Iterator[Callable[[str], None]]:
    """Show the kind and number of requests: on a terminal at once, in a log at intervals."""
    from rich.console import Console

    from sapwood.cli.progress import EVERY_S

    console = Console(stderr=True)
    count = 0
    last = time.monotonic()

    def line(what: str) -> None:
        nonlocal count, last
        count += 1
        if time.monotonic() - last >= EVERY_S:
            last = time.monotonic()
            message = f"sapwood: {what}, {count} answers so far"
            console.print(message, markup=False, highlight=False, soft_wrap=True)

    if not console.is_terminal:
        yield line
        return
    with console.status("asking") as status:

        def tick(what: str) -> None:
            nonlocal count
            count += 1
            status.update(f"{what}, {count} answers so far")

        yield tick


def show(report: "CertifyReport", *, as_json: bool) -> None:
    """Print the report as text or JSON."""
    from rich.console import Console
    from rich.text import Text

    from sapwood.certify.report import as_text

    if as_json:
        print(json.dumps(report.to_json(), allow_nan=False))
        return
    text = Text(as_text(report))
    for word, style in (("pass ", "green"), ("PASS", "bold green"), ("FAIL", "bold red")):
        text.highlight_words([word], style)
    Console().print(text, soft_wrap=True)

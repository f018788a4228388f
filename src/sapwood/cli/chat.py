"""`sapwood chat`: talk to a model in the terminal."""

import io
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sapwood.cli import options as o

if TYPE_CHECKING:
    from sapwood.api import LLM

HELP = "/reset starts over, /quit ends"
System = Annotated[str | None, typer.Option("--system", help="What the model is told before the first turn.")]


def command(
    model: o.Name = "smollm2",
    recipe: o.RecipeText = "auto",
    drafter: o.DrafterText = None,
    policy: o.PolicyText = None,
    estimator: o.EstimatorText = None,
    verifier: o.VerifierText = None,
    controller: o.ControllerText = None,
    max_tokens: o.Longest = 1024,
    temperature: o.Temperature = None,
    top_p: o.TopP = None,
    top_k: o.TopK = None,
    min_p: o.MinP = None,
    seed: o.Seed = None,
    backend: o.BackendName = None,
    device: o.Device = None,
    dtype: o.Dtype = None,
    threads: o.Threads = None,
    system: System = None,
) -> None:
    """Talk to a model; /reset starts over, /quit ends."""
    choice, sampling = o.choice_of(locals()), o.sampling_of(locals())
    from sapwood.cli import show
    from sapwood.request import check_options

    check_options(sampling)  # a wrong option fails before a model is loaded
    with show.progress() as progress:
        llm = choice.open(progress)
    show.aside(f"{llm.target.info.model} through {choice.title}; {HELP}")
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="surrogateescape")  # a line that is not UTF-8 is refused as a turn, no more
    with llm:
        talk(llm, sampling, system)


def talk(llm: "LLM", sampling: dict[str, Any], system: str | None) -> None:
    """Take turns until the user leaves."""
    from sapwood.cli import show
    from sapwood.errors import SapwoodError

    start = [{"role": "system", "content": system}] if system else []
    messages = list(start)
    while (line := ask()) != "/quit":
        if line == "/reset":
            messages = list(start)
        elif line.startswith("/"):
            show.aside(f"{line.split()[0]} is no command; {HELP}")
        elif line:
            said = {"role": "user", "content": line}
            try:
                reply = turn(llm, [*messages, said], sampling)
            except SapwoodError as error:  # the turn did not fit; the conversation stays as it was
                show.aside(f"{error}; {HELP}")
            else:
                messages += [said, {"role": "assistant", "content": reply}]


def turn(llm: "LLM", messages: list[dict[str, str]], sampling: dict[str, Any]) -> str:
    """Stream one answer; an interrupt ends it early."""
    from rich.console import Console

    from sapwood.cli import show

    console, text = Console(), ""
    try:
        for step in llm.stream_chat(messages, **sampling):
            show.write(console, step)
            text += step.text
            stats = step.stats
    except KeyboardInterrupt:
        stats = None
    sys.stdout.write("\n")
    sys.stdout.flush()
    if stats is not None:
        show.aside(show.brief(stats))
    return text


def ask() -> str:
    """The user's next line; the end of input is goodbye."""
    if sys.stdin is None:
        return "/quit"
    try:
        return input("> " if sys.stdin.isatty() else "").strip()
    except EOFError:
        return "/quit"

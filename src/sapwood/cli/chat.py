"""`sapwood chat`: talk to a model in the terminal."""

import io
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sapwood.cli import options as o

if TYPE_CHECKING:
    from sapwood.cli.chat_commands import ChatSession
    from sapwood.cli.chat_input import ChatReader
    from sapwood.engine.outputs import Step

System = Annotated[
    str | None, typer.Option("--system", help="System message before the first turn.")
]
Raw = Annotated[
    bool,
    typer.Option("--raw", help="Print answers as plain text, without rendering Markdown."),
]


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
    raw: Raw = False,
) -> None:
    """Chat with a model; /help lists the commands, /exit ends the chat."""
    choice = o.choice_of(locals())
    sampling = o.sampling_of(locals())
    from sapwood.cli import render
    from sapwood.cli.chat_commands import HELP, ChatSession, complete
    from sapwood.cli.chat_input import open_reader
    from sapwood.cli.notice import notice
    from sapwood.engine.input_processor import check_options

    check_options(sampling)  # a wrong option fails before a model is loaded
    with render.progress() as progress:
        llm = choice.open(progress)
    if (said := notice(llm)) is not None:
        render.print_dim(f"sapwood: {said}")
    render.print_dim(f"{llm.target.info.model} through {choice.title}; {HELP}")
    if isinstance(sys.stdin, io.TextIOWrapper):
        # a line that is not UTF-8 only fails its own turn
        sys.stdin.reconfigure(errors="surrogateescape")
    with llm:
        talk(ChatSession(llm, choice.title, system), open_reader(complete), sampling, raw=raw)


def talk(chat: "ChatSession", reader: "ChatReader", sampling: dict[str, Any], *, raw: bool) -> None:
    """Chat until the user leaves."""
    from sapwood.cli import render
    from sapwood.cli.chat_commands import run_command
    from sapwood.errors import SapwoodError

    while not chat.over and (line := reader.read()) is not None:
        try:
            if line.startswith("/"):
                if told := run_command(chat, line):
                    render.print_dim(told)
            elif question := line.strip():
                chat.add(question, turn(chat, question, sampling, raw=raw))
        except SapwoodError as error:  # the conversation stays as it was
            render.print_dim(str(error))


def turn(chat: "ChatSession", question: str, sampling: dict[str, Any], *, raw: bool) -> str:
    """Stream one answer; an interrupt ends it early."""
    from sapwood.cli import render
    from sapwood.engine.outputs import Completion, collect

    messages = [*chat.messages, {"role": "user", "content": question}]
    out: Completion | None
    text = ""
    coming = chat.llm.stream_chat(
        messages, **sampling
    )  # bad input fails before anything is printed
    try:
        steps = []
        with printer(raw=raw) as write:
            for step in coming:
                write(step)
                text += step.text
                steps.append(step)
        out = collect(steps)
    except KeyboardInterrupt:
        out = None
    if out is not None:
        speedup = chat.llm.measure_speedup(messages, out)
        render.print_dim(render.brief(replace(out.stats, speedup=speedup)))
    return text


@contextmanager
def printer(*, raw: bool) -> Iterator[Callable[["Step"], None]]:
    """A function that prints a step: Markdown on a terminal, else the text as it comes."""
    from rich.console import Console

    from sapwood.cli import render
    from sapwood.cli.markdown_stream import MarkdownStream

    console = Console()
    if console.is_terminal and not raw:
        with MarkdownStream(console) as stream:
            yield lambda step: stream.write(step.text)
        return
    try:
        yield lambda step: render.write(console, step)
    finally:
        sys.stdout.write("\n")
        sys.stdout.flush()

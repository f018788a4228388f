"""The `sapwood` command: one module per verb, nothing heavy imported until a verb runs."""

import importlib
import io
import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from sapwood import __version__
from sapwood.common.disk_errors import disk_error
from sapwood.common.extras import needed_by
from sapwood.common.suggest import suggestion
from sapwood.errors import SapwoodError

# modules of this package, each with a `command`, or a `group` of them
VERBS = (
    "run",
    "chat",
    "serve",
    "deploy",
    "draft_serve",
    "target_serve",
    "bench",
    "methods",
    "profile",
    "train",
    "evaluate",
    "export",
    "pull",
    "list",
    "cache",
    "certify",
    "trace",
    "replay",
)
HIDDEN = ("replica",)  # commands that other commands start
# commands with an extra of their own; other commands need the extra of the missing package
EXTRAS = {"train": "train"}
# type that an option takes, by the parser's name of the mistake
KINDS = {
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_parsing": "a number",
    "bool_parsing": "true or false",
}
WIDTH = 100  # columns of help, on a terminal that has them

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"max_content_width": WIDTH},
)


def show_version(asked: bool) -> None:
    """Print the version and exit."""
    if asked:
        typer.echo(f"sapwood {__version__}")
        raise typer.Exit


Version = Annotated[
    bool,
    typer.Option(
        "--version", callback=show_version, is_eager=True, help="Print the version and exit."
    ),
]


@app.callback()
def root(version: Version = False) -> None:
    """Adaptive, tree-based speculative decoding: the same output, faster."""


def first_line(command: Any) -> str:
    """The first line of a command's docstring.

    As its short help it is wrapped in lists of commands, where one that the parser makes is cut.
    """
    return (command.__doc__ or "").partition("\n")[0]


for verb in VERBS:
    module = importlib.import_module(f"sapwood.cli.{verb}")
    if hasattr(module, "group"):
        for entry in module.group.registered_commands:
            entry.short_help = first_line(entry.callback)
        app.add_typer(module.group, name=verb, short_help=module.group.info.help)
    else:
        short = first_line(module.command)
        app.command(verb.replace("_", "-"), short_help=short)(module.command)
for verb in HIDDEN:
    app.command(verb, hidden=True)(importlib.import_module(f"sapwood.cli.{verb}").command)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; bad input is one sentence on standard error."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    if sys.stdout is None:
        return fail("standard output is closed; send it to a file, a pipe or /dev/null")
    if isinstance(sys.stdout, io.TextIOWrapper):
        # characters that the encoding lacks become question marks
        sys.stdout.reconfigure(errors="replace")
    name = given[0] if given else "--help"
    try:
        with needed_by(f"`sapwood {name}`", EXTRAS.get(name)):
            code = app(given or ["--help"], prog_name="sapwood", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except SapwoodError as error:
        return fail(str(error))
    except KeyboardInterrupt:
        return 130
    except (BrokenPipeError, SystemExit):  # the option parser exits on a broken pipe
        silence_stdout()
        return 141
    except OSError as error:
        return refused(error)
    except Exception as error:
        if (of_disk := disk_error(error)) is not None:
            return refused(of_disk)
        if hasattr(error, "format_message"):
            return fail(usage(error))
        # torch has its own error of this name
        if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
            return fail("the memory is full; use a smaller model, a shorter text or a smaller tree")
        raise


def refused(error: OSError) -> int:
    """Print what the system refused; return the exit code."""
    silence_stdout()
    return fail(f"the system refused to read or write ({error}); make room, or use another place")


def usage(error: Any) -> str:
    """The option parser's message, completed by the value or by the option that was meant."""
    path = error.ctx.command_path if getattr(error, "ctx", None) else "sapwood"
    more = f"see `{path} --help`"
    if option := getattr(error, "option_name", None):
        return f"no such option {option}; {suggestion(option, error.possibilities or (), more)}"
    wrong = next(iter(getattr(error.__cause__, "errors", list)()), None)
    if wrong is not None and wrong.get("type") in KINDS:
        name = getattr(error, "param_hint", None) or error.param.opts[0]
        return f"{name} must be {KINDS[wrong['type']]}, not {wrong['input']!r}; {more}"
    value = "" if wrong is None else f", not {wrong['input']!r}"
    message, _, meant = error.format_message().partition(" Did you mean ")
    if meant:
        more = f"did you mean {meant}"
    return f"{message.rstrip('.')}{value}; {more}"


def fail(sentence: str) -> int:
    """Print an error message; return the exit code."""
    typer.echo("sapwood: " + " ".join(sentence.split()), err=True)
    return 2


def silence_stdout() -> None:
    """Redirect a standard output that cannot be written, so that the last flush does not fail."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())

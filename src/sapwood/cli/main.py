"""The `sapwood` command: one module per verb, nothing heavy imported until a verb runs."""

import importlib
import io
import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from sapwood.errors import SapwoodError

# modules of this package, each with a `command`, or a `group` of them
VERBS = ("run", "chat", "serve", "bench", "methods", "profile", "train", "export", "certify", "trace", "replay")

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def show_version(asked: bool) -> None:
    """Print the version and leave."""
    if asked:
        from importlib.metadata import version

        typer.echo(f"sapwood {version('sapwood')}")
        raise typer.Exit


Version = Annotated[
    bool, typer.Option("--version", callback=show_version, is_eager=True, help="Print the version and leave.")
]


@app.callback()
def root(version: Version = False) -> None:
    """Adaptive, tree-based speculative decoding: the same output, faster."""


for verb in VERBS:
    module = importlib.import_module(f"sapwood.cli.{verb}")
    if hasattr(module, "group"):
        app.add_typer(module.group, name=verb)
    else:
        app.command(verb)(module.command)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; bad input is one sentence on standard error."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    if sys.stdout is None:
        return fail("standard output is closed; send it to a file, a pipe or /dev/null")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # what the encoding lacks is shown as a question mark
    try:
        code = app(given or ["--help"], prog_name="sapwood", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except SapwoodError as error:
        return fail(str(error))
    except KeyboardInterrupt:
        return 130
    except (BrokenPipeError, SystemExit):  # the option parser exits where it meets a broken pipe
        hush()
        return 141
    except OSError as error:
        hush()
        return fail(f"the system refused to read or write ({error}); make room, or use another place")
    except Exception as error:
        if hasattr(error, "format_message"):
            return fail(usage(error))
        if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":  # torch has one of its own
            return fail("the memory is full; use a smaller model, a shorter text or a smaller tree")
        raise


def usage(error: Any) -> str:
    """Wrong usage in the option parser's words, with the value, which it leaves out."""
    inputs = [item["input"] for item in getattr(error.__cause__, "errors", list)()]
    path = error.ctx.command_path if getattr(error, "ctx", None) else "sapwood"
    return f"{error.format_message().rstrip('.')}{f', not {inputs[0]!r}' if inputs else ''}; see `{path} --help`"


def fail(sentence: str) -> int:
    """Say what is wrong with the input."""
    typer.echo("sapwood: " + " ".join(sentence.split()), err=True)
    return 2


def hush() -> None:
    """Where standard output takes no more, let the interpreter flush what is left into nothing."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())

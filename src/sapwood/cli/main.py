"""The `sapwood` command: one module per verb, nothing heavy imported until a verb runs."""

import importlib
import os
import sys
from collections.abc import Sequence

import typer

from sapwood.errors import SapwoodError

VERBS = ("run", "chat", "bench", "methods", "profile")  # modules of this package, each with a `command`

app = typer.Typer(
    help="Adaptive, tree-based speculative decoding: the same output, faster.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for verb in VERBS:
    app.command(verb)(importlib.import_module(f"sapwood.cli.{verb}").command)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; bad input is one sentence on standard error."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    try:
        code = app(given or ["--help"], prog_name="sapwood", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except SapwoodError as error:
        return fail(str(error))
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        hush()
        return 141
    except Exception as error:
        if hasattr(error, "format_message"):  # wrong usage, as the option parser says it
            return fail(f"{error.format_message().rstrip('.')}; see `sapwood --help`")
        raise


def fail(sentence: str) -> int:
    """Say what is wrong with the input."""
    typer.echo("sapwood: " + " ".join(sentence.split()), err=True)
    return 2


def hush() -> None:
    """Nobody reads standard output any more: let the interpreter flush it into nothing."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())

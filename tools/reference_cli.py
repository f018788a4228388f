"""The page of the command line, from the annotations of the commands themselves."""

import inspect
import re
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from typer.models import ArgumentInfo, OptionInfo

from sapwood.cli.main import app

PREFACE = """\
<!-- written by tools/reference.py from the commands: change those, then run `make tables` -->

# Command line

`sapwood COMMAND --help` prints the same. Bad input is one sentence on standard error and exit
code 2.
"""
WRITTEN = re.compile(r"\s*\[default: (?P<value>.*)\]$")


def page() -> str:
    """The whole page."""
    return "\n".join([PREFACE, *(section(name, call) for name, call in commands())])


def commands() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Every command that help lists, with its name, those of groups included."""
    groups = {group.name: group.typer_instance for group in app.registered_groups}
    for info in app.registered_commands:
        assert info.callback is not None
        if not info.hidden:
            yield str(info.name), info.callback
    for name, group in groups.items():
        assert group is not None
        for info in group.registered_commands:
            assert info.callback is not None
            yield f"{name} {info.name or info.callback.__name__}", info.callback


def section(name: str, call: Callable[..., Any]) -> str:
    """One command: usage, a sentence, its arguments and options."""
    hints = typing.get_type_hints(call, include_extras=True)
    rows = []
    usage = [f"sapwood {name}"]
    for parameter in inspect.signature(call).parameters.values():
        kind, info = typing.get_args(hints[parameter.name])[:2]
        required = parameter.default is inspect.Parameter.empty
        if isinstance(info, ArgumentInfo):
            word = (info.metavar or parameter.name).upper()
            usage.append(word if required else f"[{word}]")
            rows.append(row(word, "", info.help, parameter.default))
        elif isinstance(info, OptionInfo) and not info.hidden:
            rows.append(
                row(flags_of(info, parameter.name), value_of(kind), info.help, parameter.default)
            )
    text = inspect.getdoc(call) or ""
    body = "\n".join(["| option | default | |", "| --- | --- | --- |", *rows])
    return f"## sapwood {name}\n\n{text}\n\n```\n{' '.join([*usage, '[OPTIONS]'])}\n```\n\n{body}\n"


def flags_of(info: OptionInfo, name: str) -> str:
    """An option as typed; typer keeps the first name of an annotated option as its default."""
    first = [info.default] if isinstance(info.default, str) else []
    return ", ".join([*first, *(info.param_decls or ())]) or f"--{name.replace('_', '-')}"


def value_of(kind: Any) -> str:
    """The placeholder of an option's value; empty for a switch."""
    inner = [each for each in typing.get_args(kind) if each is not type(None)] or [kind]
    first = inner[0]
    if typing.get_origin(first) is list:
        [first] = typing.get_args(first)
    return {int: "N", float: "X", bool: "", Path: "FILE"}.get(first, "TEXT")


def row(flags: str, value: str, help_text: str | None, default: Any) -> str:
    """One line of the table."""
    text = (help_text or "").strip()
    written = WRITTEN.search(text)
    shown = ""
    if written:
        shown = written["value"]
        text = WRITTEN.sub("", text)
    elif default not in (None, False, "", inspect.Parameter.empty):
        shown = f"`{default}`"
    name = f"{flags} {value}".strip()
    return f"| `{name}` | {shown} | {text} |".replace("|  |", "| |")

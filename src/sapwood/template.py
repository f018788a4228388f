"""Chat templates: Jinja programs that come with a model, run in a sandbox.

The dialect is the one transformers defines: `raise_exception`, `strftime_now`, `tojson`, loop
controls, and `generation` blocks, which mark what a model was trained to say and print as they are.
"""

import datetime
import json
from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from sapwood.errors import SapwoodError

Message = Mapping[str, Any]


class Generation(Extension):
    """Prints the body of a `generation` block."""

    tags = {"generation"}  # noqa: RUF012 (the base class declares it so)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Put the body where the block stood."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def render(template: str, messages: Sequence[Message], **variables: Any) -> str:
    """The text of a conversation, up to where the assistant speaks next."""
    world = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols], keep_trailing_newline=False
    )
    world.filters["tojson"] = tojson
    world.globals["raise_exception"] = refuse
    world.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
    try:
        program = world.from_string(template)
        return program.render(messages=messages, add_generation_prompt=True, **variables)
    except Exception as error:  # a template is a program that came with the model: it may fail in any way
        raise SapwoodError(
            f"the model's chat template refuses these messages ({error}); change them, or send one text --raw"
        ) from error


def refuse(reason: str) -> None:
    """What a template calls when it cannot show a conversation."""
    raise TemplateError(reason)


def tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None) -> str:
    """JSON without HTML escapes."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)

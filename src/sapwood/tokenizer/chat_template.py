"""Chat templates: Jinja programs that come with a model, run in a sandbox.

The dialect is the one transformers defines: `raise_exception`, `strftime_now`, `tojson`, loop
controls, and `generation` blocks, which mark the trained part of a text and print as they are.
"""

import datetime
import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from jinja2 import Template, TemplateError, meta, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser

from sapwood.errors import SapwoodError
from sapwood.tokenizer.template_sandbox import (
    SIZE,
    TICK,
    TemplateLimit,
    TemplateSandbox,
    TimeLimit,
    guarded,
)

Message = Mapping[str, Any]
LONGEST = 256 << 10  # characters of a template


class GenerationTag(Extension):
    """Prints the body of a `generation` block."""

    tags = {"generation"}  # noqa: RUF012 (the base class declares it so)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Replace the block by its body."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def render(template: str, messages: Sequence[Message], **variables: Any) -> str:
    """Text of a conversation, up to the assistant's next turn."""
    pieces = []
    length = 0
    try:
        clock = {TICK: TimeLimit().tick}
        for piece in program(template).generate(
            messages=messages, add_generation_prompt=True, **variables, **clock
        ):
            length += len(piece)
            if length > SIZE:
                raise TemplateLimit(f"it writes more than {SIZE} characters")
            pieces.append(piece)
    except TemplateLimit as error:
        raise SapwoodError(
            f"the model's chat template was stopped: {error}; use another model or template"
        ) from error
    # a template is a program that came with the model: it may fail in any way
    except Exception as error:
        raise SapwoodError(
            f"the model's chat template refuses these messages ({error}); "
            "change them, or send one text --raw"
        ) from error
    return "".join(pieces)


@lru_cache(maxsize=8)
def program(template: str) -> Template:
    """The compiled template."""
    if len(template) > LONGEST:
        raise TemplateLimit(f"it has {len(template)} characters, but may have {LONGEST}")
    return environment().from_string(template)


@lru_cache(maxsize=1)
def environment() -> TemplateSandbox:
    """The sandboxed Jinja environment of all templates."""
    made = TemplateSandbox(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[GenerationTag, loopcontrols],
        keep_trailing_newline=False,
    )
    made.filters["tojson"] = guarded("tojson", tojson)
    made.globals["raise_exception"] = refuse
    made.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
    return made


@lru_cache(maxsize=64)
def uses(template: str, name: str) -> bool:
    """True when a template uses a variable of this name; False when it cannot be parsed."""
    if len(template) > LONGEST:
        return False
    try:
        return name in meta.find_undeclared_variables(environment().parse(template))
    except (TemplateError, RecursionError):
        return False


def refuse(reason: str) -> None:
    """Refuse a conversation: the `raise_exception` of templates."""
    raise TemplateError(reason)


def tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None) -> str:
    """JSON without HTML escapes."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)

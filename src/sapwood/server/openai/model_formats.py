"""Formats in which families of models write tool calls and reasoning, read from a data file."""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Any, Literal, TypeVar

FILE = "model_formats.toml"


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    """Texts around reasoning, and markup that is no part of the text after it."""

    name: str
    template: tuple[str, ...]  # texts of a chat template of this family
    open: str
    close: str
    without: tuple[str, ...] = ()  # texts that such a template lacks
    remove: tuple[str, ...] = ()
    tokens: tuple[str, ...] = ()  # special tokens that must stay in the text until it is parsed


@dataclass(frozen=True, slots=True)
class CallFormat:
    """The form of tool calls."""

    name: str
    template: tuple[str, ...]  # texts of a chat template of this family
    open: str  # begins a section of calls
    close: str = ""  # ends it; empty: the next section does, or the end of the output
    without: tuple[str, ...] = ()
    call: "re.Pattern[str] | None" = None  # one call inside a section; None: the section is JSON
    arguments: Literal["json", "pairs", "python"] = "json"
    pair: "re.Pattern[str] | None" = None  # one argument
    tokens: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class OutputSyntax:
    """Parser state of a request's output: its model's formats, and the state that it begins in."""

    calls: CallFormat
    reasoning: ReasoningFormat | None = None
    opened: bool = False  # the prompt ends inside reasoning

    @property
    def tokens(self) -> tuple[str, ...]:
        """Special tokens that must stay in the text until it is parsed."""
        own = self.reasoning.tokens if self.reasoning else ()
        return (*self.calls.tokens, *own)


Format = TypeVar("Format", CallFormat, ReasoningFormat)


@lru_cache(maxsize=1)
def formats() -> tuple[list[CallFormat], list[ReasoningFormat]]:
    """All formats of calls and of reasoning, in the order in which they are tried."""
    content = (files("sapwood.server.openai") / FILE).read_text("utf-8")
    found = tomllib.loads(content)
    calls = [CallFormat(**fields_of(entry)) for entry in found["calls"]]
    return calls, [ReasoningFormat(**fields_of(entry)) for entry in found["reasoning"]]


def fields_of(entry: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of an entry: lists as tuples, patterns compiled."""
    patterns = {"call", "pair"}
    return {
        name: re.compile(value, re.DOTALL)
        if name in patterns
        else tuple(value)
        if isinstance(value, list)
        else value
        for name, value in entry.items()
    }


def fits(entry: CallFormat | ReasoningFormat, template: str) -> bool:
    """True when a chat template is of an entry's family."""
    return all(text in template for text in entry.template) and not any(
        text in template for text in entry.without
    )


@lru_cache(maxsize=8)
def call_format(template: str | None) -> CallFormat:
    """The form of tool calls for a chat template."""
    return next(entry for entry in formats()[0] if fits(entry, template or ""))


@lru_cache(maxsize=8)
def reasoning_format(template: str | None) -> ReasoningFormat | None:
    """The form of reasoning for a chat template; None where the model writes none."""
    return next((entry for entry in formats()[1] if fits(entry, template or "")), None)


def syntax_of(template: str | None, prompt: str) -> OutputSyntax:
    """The syntax of the output after a rendered prompt."""
    reasoning = reasoning_format(template)
    opened = reasoning is not None and prompt.rstrip().endswith(reasoning.open)
    return OutputSyntax(call_format(template), reasoning, opened)

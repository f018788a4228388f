"""Tool calls in the output: parsed when it is complete, or as it is written.

A grammar may hold the output to calls. Then the text after `<tool_call>` is a call, its arguments
are sent as they come, and a call that was cut is still a call. Without such a grammar a text that
begins like a call may turn out to be none, and stays text.
"""

import json
import re
from collections.abc import Sequence

from sapwood.server.openai.model_formats import OutputSyntax, call_format
from sapwood.server.openai.output_parser import (
    KnownFunctions,
    ParsedOutput,
    ParsedToolCall,
    split_reasoning,
    split_sections,
    without_markup,
)
from sapwood.server.openai.response_format import ResponseFormat
from sapwood.server.openai.tools import CLOSE, OPEN, Constraint
from sapwood.tokenizer.detokenizer import overlap

HEAD = re.compile(r'\n\{"name": ("(?:[^"\\]|\\.)*"), "arguments": ')
# the end of a call under a grammar; JSON on one line cannot contain it
TAIL = f"}}\n{CLOSE}"


def parse_output(
    raw: str, syntax: OutputSyntax | None, form: ResponseFormat | None, *, done: bool
) -> ParsedOutput:
    """The parts of an output so far; `done` when no more will come."""
    reasoning, rest, place = split_reasoning(raw, syntax, done=done)
    calls: list[ParsedToolCall] = []
    if form is None or not form.functions.names:
        text = rest
    elif form.constraint == "none" and syntax is not None:
        text, calls = split_sections(rest, syntax.calls, form.functions, done=done)
    else:
        text, calls = split_constrained(rest, form.constraint, done=done)
    if syntax is not None:
        text = without_markup(text, syntax.reasoning, done=done)
    return ParsedOutput(reasoning, text, calls, place)


def split_constrained(
    text: str, constraint: Constraint, *, done: bool
) -> tuple[str, list[ParsedToolCall]]:
    """The text without its calls, and the calls, of an output whose calls a grammar constrains."""
    if constraint == "answer" and not begins_call(text):
        return text, []
    content, calls = constrained_calls(text, done=done)
    if not done:
        content = text[: visible_length(text, constraint)]
    return (content if constraint == "text" else ""), calls


def begins_call(text: str) -> bool:
    """True for a text that begins with a call, or with a part of its opening."""
    return bool(text) and OPEN.startswith(text[: len(OPEN)])


def visible_length(text: str, constraint: Constraint) -> int:
    """Number of leading characters that cannot become part of a tool call as the text goes on."""
    if constraint == "answer":
        return 0 if begins_call(text) else len(text)
    start = text.find(OPEN)
    return len(text) - overlap(text, OPEN) if start < 0 else start


# ------------------------------------------------------------------------------- under a grammar
def constrained_calls(text: str, *, done: bool) -> tuple[str, list[ParsedToolCall]]:
    """Text and calls of an output whose calls a grammar constrains; the last may be cut."""
    calls: list[ParsedToolCall] = []
    pieces: list[str] = []
    place = 0
    while (start := text.find(OPEN, place)) >= 0:
        pieces.append(text[place:start])
        place = len(text)
        head = HEAD.match(text, start + len(OPEN))
        if head is None:  # cut within its name
            break
        end = text.find(TAIL, head.end())
        written = cut_arguments(text[head.end() :], done=done) if end < 0 else ""
        calls.append(
            ParsedToolCall(json.loads(head[1]), written if end < 0 else text[head.end() : end])
        )
        if end < 0:
            break
        place = end + len(TAIL)
    rest = text[place:]
    pieces.append(rest if done else rest[: len(rest) - overlap(rest, OPEN)])
    content = "".join(pieces)
    return (content.strip() if calls else content), calls


def cut_arguments(written: str, *, done: bool) -> str:
    """Arguments of a call without its end; characters that may belong to the end are held back."""
    held = written[: len(written) - overlap(written, TAIL)]
    return written if done and (is_json(written) or not is_json(held)) else held


def is_json(text: str) -> bool:
    """True for a text that is JSON."""
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


# ------------------------------------------------------------------------------- without a grammar
def free_calls(text: str, names: Sequence[str] = ()) -> tuple[str, list[ParsedToolCall]]:
    """The text without its calls in the common form, and the calls."""
    return split_sections(text, call_format(None), KnownFunctions(names), done=True)

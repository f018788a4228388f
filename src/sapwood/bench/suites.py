"""Prompts of a benchmark: built-in suites and JSONL files, by category, in a fixed order.

A line of a file is {"turns": [...]} as in Spec-Bench (the user's messages, one after the other;
each output becomes history), {"prompt": ...} or {"messages": [...]}, each with an optional
"category".
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice, zip_longest
from operator import attrgetter
from pathlib import Path
from typing import Any

from sapwood.bench.prompts import BUILT_IN, RandomPrompt
from sapwood.common.reasons import reason_of
from sapwood.core.types import BackendInfo
from sapwood.engine.input_processor import read_chat, read_prompt
from sapwood.errors import SapwoodError
from sapwood.tokenizer.tokenizer import Tokenizer

MT_BENCH = (
    "writing",
    "roleplay",
    "reasoning",
    "math",
    "coding",
    "extraction",
    "stem",
    "humanities",
)
FORMS = 'give it "turns", "prompt" or "messages"'

# one user turn, random tokens, or a conversation
Content = str | RandomPrompt | list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class BenchPrompt:
    """One request of a suite."""

    name: str  # suite and number, as in copy:3 or questions.jsonl:17
    category: str  # the report groups by it
    task: str  # the finer category of its file
    content: Content
    later: tuple[str, ...] = ()  # further user turns

    def tokens(self, info: BackendInfo, text: Tokenizer | None) -> list[int]:
        """The prompt as tokens."""
        try:
            if isinstance(self.content, list):
                return read_chat(self.content, info, text)
            content = (
                self.content.tokens(info.vocab)
                if isinstance(self.content, RandomPrompt)
                else self.content
            )
            return read_prompt(content, info, text, raw=False)
        except SapwoodError as error:
            raise SapwoodError(f"prompt {self.name}: {error}") from error


def gather(
    suite: str, categories: Sequence[str] = (), limit: int | None = None, turns: int | None = None
) -> list[BenchPrompt]:
    """The prompts of these suites and categories, at most `limit`, each of at most `turns`."""
    names = (
        [suite]
        if Path(suite).is_file()
        else [name.strip() for name in suite.split(",") if name.strip()]
    )
    found = [prompt for name in names for prompt in open_suite(name)]
    if not found:
        raise SapwoodError(f"suite {suite!r} holds no prompts; built in: {', '.join(BUILT_IN)}")
    known = list(dict.fromkeys(word for prompt in found for word in (prompt.category, prompt.task)))
    for category in categories:
        if category not in known:
            raise SapwoodError(
                f"category {category!r} is not in suite {suite!r}; it has: {', '.join(known)}"
            )
    if limit is not None and limit < 1:
        raise SapwoodError(f"limit={limit} must be at least 1")
    if turns is not None and turns < 1:
        raise SapwoodError(f"turns={turns} must be at least 1")
    kept = [
        prompt
        for prompt in found
        if not categories or {prompt.category, prompt.task} & {*categories}
    ]
    return [shortened(prompt, turns) for prompt in islice(spread(kept), limit)]


def shortened(prompt: BenchPrompt, turns: int | None) -> BenchPrompt:
    """The same prompt with at most `turns` turns."""
    return prompt if turns is None else replace(prompt, later=prompt.later[: turns - 1])


def open_suite(name: str) -> list[BenchPrompt]:
    """The prompts of one suite, in its order."""
    if name in BUILT_IN:
        return [
            BenchPrompt(f"{name}:{at}", name, name, content)
            for at, content in enumerate(BUILT_IN[name](), 1)
        ]
    path = Path(os.path.expanduser(name))
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        reason = "is no file that can be read, and not built in"
        raise SapwoodError(
            f"suite {name!r} {reason}; use a JSONL file or: {', '.join(BUILT_IN)}"
        ) from error
    return [read_line(path, number, line) for number, line in enumerate(lines, 1) if line.strip()]


def read_line(path: Path, number: int, line: bytes) -> BenchPrompt:
    """The prompt on one line of a file."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:  # not JSON, not UTF-8, or brackets without end
        raise SapwoodError(
            f"line {number} of {path} is not JSON ({reason_of(error)}); "
            "write one object on each line"
        ) from error
    content = read_content(record) if isinstance(record, dict) else None
    if content is None or read_later(record) is None:
        raise SapwoodError(f"line {number} of {path} is not a prompt; {FORMS}, none of them empty")
    task = record.get("category", path.stem)
    if not isinstance(task, str):
        raise SapwoodError(f"line {number} of {path} has category {task!r}, which must be a text")
    category = "mt_bench" if task in MT_BENCH else task
    return BenchPrompt(f"{path.name}:{number}", category, task, content, read_later(record) or ())


def read_content(record: Mapping[str, Any]) -> Content | None:
    """The first turn or the messages of a line, in any of the three forms; None if missing."""
    messages = record.get("messages")
    turns = record.get("turns")
    if (
        isinstance(messages, list)
        and messages
        and all(isinstance(message, dict) for message in messages)
    ):
        return messages
    first = turns[0] if isinstance(turns, list) and turns else record.get("prompt")
    return first if isinstance(first, str) and first else None


def read_later(record: Mapping[str, Any]) -> tuple[str, ...] | None:
    """The turns after the first; None if one of them is not a text."""
    turns = record.get("turns")
    later = turns[1:] if isinstance(turns, list) and not record.get("messages") else []
    return tuple(later) if all(isinstance(turn, str) and turn for turn in later) else None


def spread(prompts: Sequence[BenchPrompt]) -> Iterator[BenchPrompt]:
    """One prompt of each category in turn, and inside a category one of each task in turn."""
    categories = groups(prompts, attrgetter("category"))
    return interleave(
        [list(interleave(groups(category, attrgetter("task")))) for category in categories]
    )


def groups(
    prompts: Sequence[BenchPrompt], key: Callable[[BenchPrompt], str]
) -> list[list[BenchPrompt]]:
    """Prompts with the same key, in the order of first appearance."""
    found: dict[str, list[BenchPrompt]] = {}
    for prompt in prompts:
        found.setdefault(key(prompt), []).append(prompt)
    return list(found.values())


def interleave(lists: Sequence[Sequence[BenchPrompt]]) -> Iterator[BenchPrompt]:
    """The first of each list, then the second of each, and so on."""
    return (prompt for prompt in chain.from_iterable(zip_longest(*lists)) if prompt is not None)


def digest(prompts: Sequence[BenchPrompt]) -> str:
    """A short hash of the prompts and their order."""
    content = json.dumps(
        [[prompt.category, spelled(prompt.content), *prompt.later] for prompt in prompts]
    )
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def spelled(content: Content) -> str:
    """A prompt's content as in published digests, which must not change with our class names."""
    if isinstance(content, RandomPrompt):
        return f"Noise(key={content.key}, length={content.length})"
    return repr(content)

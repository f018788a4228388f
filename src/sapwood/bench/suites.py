"""Which prompts a benchmark runs: built-in suites and JSONL files, by category, in a fixed order.

A line of a file is {"turns": [...]} as in Spec-Bench (what the user says, one after the other; each answer becomes
history), {"prompt": ...} or {"messages": [...]}, each with an optional "category".
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

from sapwood.bench.prompts import BUILT_IN, Noise
from sapwood.errors import SapwoodError
from sapwood.records import BackendInfo
from sapwood.request import read_chat, read_prompt
from sapwood.text import Text

MT_BENCH = ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities")
FORMS = 'give it "turns", "prompt" or "messages"'

Content = str | Noise | list[dict[str, Any]]  # one user turn, random tokens, or a conversation


@dataclass(frozen=True, slots=True)
class Prompt:
    """One request of a suite."""

    name: str  # suite and place, as in copy:3 or questions.jsonl:17
    category: str  # what the report groups by
    task: str  # the finer category of its file
    content: Content
    later: tuple[str, ...] = ()  # further turns of the user, asked once the earlier ones were answered

    def tokens(self, info: BackendInfo, text: Text | None) -> list[int]:
        """The prompt as the model reads it."""
        try:
            if isinstance(self.content, list):
                return read_chat(self.content, info, text)
            content = self.content.tokens(info.vocab) if isinstance(self.content, Noise) else self.content
            return read_prompt(content, info, text, raw=False)
        except SapwoodError as error:
            raise SapwoodError(f"prompt {self.name}: {error}") from error


def gather(
    suite: str, categories: Sequence[str] = (), limit: int | None = None, turns: int | None = None
) -> list[Prompt]:
    """The prompts of these suites and categories, categories in turn, at most `limit`, each of at most `turns`."""
    names = [suite] if Path(suite).is_file() else [name.strip() for name in suite.split(",") if name.strip()]
    found = [prompt for name in names for prompt in open_suite(name)]
    if not found:
        raise SapwoodError(f"suite {suite!r} holds no prompts; built in: {', '.join(BUILT_IN)}")
    known = list(dict.fromkeys(word for prompt in found for word in (prompt.category, prompt.task)))
    for category in categories:
        if category not in known:
            raise SapwoodError(f"category {category!r} is not in suite {suite!r}; it has: {', '.join(known)}")
    if limit is not None and limit < 1:
        raise SapwoodError(f"limit={limit} must be at least 1")
    if turns is not None and turns < 1:
        raise SapwoodError(f"turns={turns} must be at least 1")
    kept = [prompt for prompt in found if not categories or {prompt.category, prompt.task} & {*categories}]
    return [shortened(prompt, turns) for prompt in islice(spread(kept), limit)]


def shortened(prompt: Prompt, turns: int | None) -> Prompt:
    """The same prompt with at most so many turns."""
    return prompt if turns is None else replace(prompt, later=prompt.later[: turns - 1])


def open_suite(name: str) -> list[Prompt]:
    """The prompts of one suite in their own order."""
    if name in BUILT_IN:
        return [Prompt(f"{name}:{at}", name, name, content) for at, content in enumerate(BUILT_IN[name](), 1)]
    path = Path(os.path.expanduser(name))
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        reason = "is no file that can be read, and not built in"
        raise SapwoodError(f"suite {name!r} {reason}; use a JSONL file or: {', '.join(BUILT_IN)}") from error
    return [read_line(path, number, line) for number, line in enumerate(lines, 1) if line.strip()]


def read_line(path: Path, number: int, line: bytes) -> Prompt:
    """The prompt on one line of a file."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:  # not JSON, not UTF-8, or brackets without end
        raise SapwoodError(f"line {number} of {path} is not JSON: {error}; write one object on each line") from error
    content = read_content(record) if isinstance(record, dict) else None
    if content is None or read_later(record) is None:
        raise SapwoodError(f"line {number} of {path} is not a prompt; {FORMS}, none of them empty")
    task = record.get("category", path.stem)
    if not isinstance(task, str):
        raise SapwoodError(f"line {number} of {path} has category {task!r}, which must be a text")
    category = "mt_bench" if task in MT_BENCH else task
    return Prompt(f"{path.name}:{number}", category, task, content, read_later(record) or ())


def read_content(record: Mapping[str, Any]) -> Content | None:
    """What is asked, in any of the three forms; None where there is nothing."""
    messages, turns = record.get("messages"), record.get("turns")
    if isinstance(messages, list) and messages and all(isinstance(message, dict) for message in messages):
        return messages
    first = turns[0] if isinstance(turns, list) and turns else record.get("prompt")
    return first if isinstance(first, str) and first else None


def read_later(record: Mapping[str, Any]) -> tuple[str, ...] | None:
    """The turns after the first; None where one of them is no text."""
    turns = record.get("turns")
    later = turns[1:] if isinstance(turns, list) and not record.get("messages") else []
    return tuple(later) if all(isinstance(turn, str) and turn for turn in later) else None


def spread(prompts: Sequence[Prompt]) -> Iterator[Prompt]:
    """One prompt of each category in turn, and inside a category one of each task in turn."""
    categories = groups(prompts, attrgetter("category"))
    return weave([list(weave(groups(category, attrgetter("task")))) for category in categories])


def groups(prompts: Sequence[Prompt], word: Callable[[Prompt], str]) -> list[list[Prompt]]:
    """Prompts that share a word, in the order in which the words come up."""
    found: dict[str, list[Prompt]] = {}
    for prompt in prompts:
        found.setdefault(word(prompt), []).append(prompt)
    return list(found.values())


def weave(lists: Sequence[Sequence[Prompt]]) -> Iterator[Prompt]:
    """The first of each list, then the second of each, and so on."""
    return (prompt for prompt in chain.from_iterable(zip_longest(*lists)) if prompt is not None)


def digest(prompts: Sequence[Prompt]) -> str:
    """A short fingerprint of the prompts and their order."""
    said = json.dumps([[prompt.category, repr(prompt.content), *prompt.later] for prompt in prompts])
    return hashlib.sha256(said.encode()).hexdigest()[:16]

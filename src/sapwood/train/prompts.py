"""Prompts of the corpus: from a file, written by the target itself, or made from passages."""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar

from sapwood.common.reasons import reason_of
from sapwood.core.rng import path_key, uniforms
from sapwood.errors import SapwoodError
from sapwood.tokenizer.chat_template import render
from sapwood.tokenizer.tokenizer import Tokenizer, check_unicode
from sapwood.train.prompt_templates import (
    ASKED,
    OPENINGS,
    PASSAGES,
    QUESTIONS,
    SENTENCES,
    PromptOpening,
)

MARK = "sapwood-user-words"  # placeholder for the user's text when the chat template is split
SENTENCE_ENDS = re.compile(r"(?<=[.!?])\s+")
# a text in which the same GRAM tokens in a row occur REPEATS times repeats itself
GRAM = 20
REPEATS = 3
SHORTEST = 8  # characters of a turn worth answering
# tokens of a passage
SHORT = 300
LONG = 800
TASKS = ((PASSAGES, 0.4), (QUESTIONS, 0.35), (SENTENCES, 0.25))  # with the share of each kind

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class TrainPrompt:
    """A prompt as tokens, up to the start of the answer."""

    tokens: tuple[int, ...]
    words: str  # the user's last message


@dataclass(frozen=True, slots=True)
class PromptFile:
    """The prompts of a file."""

    items: Sequence[TrainPrompt]
    long: int = 0  # left out for their length
    repeated: int = 0  # left out as duplicates


class KeyedDraws:
    """A few uniform random numbers of one key, in order."""

    def __init__(self, *words: int, count: int = 64) -> None:
        self.places: list[float] = uniforms(path_key(list(words)), count).tolist()

    @property
    def left(self) -> int:
        """Numbers not drawn yet."""
        return len(self.places)

    def number(self) -> float:
        """The next number between 0 and 1."""
        return self.places.pop()

    def one(self, items: Sequence[Item]) -> Item:
        """One of these, with equal probability."""
        return items[int(self.number() * len(items))]

    def weighted(self, items: Sequence[Item], weight: Callable[[Item], float]) -> Item:
        """One of these, by weight."""
        left = self.number() * sum(map(weight, items))
        for item in items:
            left -= weight(item)
            if left < 0:
                return item
        return items[-1]


# ---------------------------------------------------------------------------- chat template
@dataclass(frozen=True, slots=True)
class ChatFrame:
    """The text that a chat template puts before and after a user's message."""

    text: Tokenizer
    head: str
    tail: str  # ends where the assistant's message begins
    trims: bool  # whitespace around the message is removed

    @classmethod
    def of(cls, text: Tokenizer, model: str) -> "ChatFrame":
        """Split the template of this model."""
        if text.template is None:
            raise SapwoodError(
                f"model {model!r} has no chat template to write training data with; "
                "use a chat model"
            )
        whole, wide = (rendered(text, words) for words in (MARK, f" {MARK} "))
        if whole.count(MARK) != 1:
            raise SapwoodError(
                f"the chat template of {model!r} changes the user's words; use another model"
            )
        head, tail = whole.split(MARK)
        return cls(text, head, tail, trims=wide == whole)

    @property
    def opening(self) -> list[int]:
        """Tokens up to the start of the user's message."""
        return self.text.encode(self.head, whole=False)

    @property
    def ends(self) -> list[int]:
        """Tokens that end a user's turn."""
        return sorted({*self.text.encode(self.tail, whole=False)[:1], *self.text.eos})

    def prompts(self, words: Sequence[str]) -> list[TrainPrompt]:
        """A prompt of each user message."""
        trimmed = [word.strip() if self.trims else word for word in words]
        whole = [self.head + word + self.tail for word in trimmed]
        encoded = self.text.tokenizer.encode_batch(whole, add_special_tokens=False)
        return [
            TrainPrompt(tuple(one.ids), word) for one, word in zip(encoded, trimmed, strict=True)
        ]


def rendered(text: Tokenizer, words: str) -> str:
    """One user message in the chat template."""
    assert text.template is not None
    return render(text.template, [{"role": "user", "content": words}], **text.specials)


# ------------------------------------------------------------------------ prompts of a file
def read(path: Path, frame: ChatFrame, limit: int) -> PromptFile:
    """The prompts of a JSONL file as tokens; a bad line is an error with its number."""
    found: list[TrainPrompt] = []
    chats = list(lines(path))
    plain = iter(frame.prompts([chat[0]["content"] for _, chat in chats if alone(chat)]))
    for number, chat in chats:
        found.append(next(plain) if alone(chat) else longer(path, number, chat, frame.text))
    unique = list({prompt.tokens: prompt for prompt in found}.values())
    short = [prompt for prompt in unique if len(prompt.tokens) <= limit]
    if not short:
        raise SapwoodError(
            f"no prompt of {path} is at most {limit} tokens long; "
            "bring shorter ones or a higher limit"
        )
    return PromptFile(short, long=len(unique) - len(short), repeated=len(found) - len(unique))


def content(path: Path) -> bytes:
    """Bytes of a file of prompts."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise SapwoodError(
            f"the prompts file {path} cannot be read ({error.strerror}); check the path"
        ) from error


def mark(path: Path | None) -> str | None:
    """A hash of a file of prompts; None if there is none."""
    return sha256(content(path)).hexdigest() if path else None


def lines(path: Path) -> Iterator[tuple[int, list[dict[str, str]]]]:
    """Number and messages of each line that is not blank."""
    try:
        decoded = content(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        number = error.object[: error.start].count(b"\n") + 1
        raise SapwoodError(
            f"line {number} of {path} is not UTF-8 (byte {error.start}); save it as UTF-8"
        ) from error
    rows = [(number, row) for number, row in enumerate(decoded.split("\n"), 1) if row.strip()]
    if not rows:
        raise SapwoodError(
            f"{path} holds no prompts; give one JSON object per line, each with a `prompt`"
        )
    for number, row in rows:
        try:
            yield number, messages(row)
        except (ValueError, RecursionError) as error:
            raise SapwoodError(
                f"line {number} of {path} {reason(error)}; mend or remove it"
            ) from error


def reason(error: Exception) -> str:
    """The error of a line as text."""
    return (
        f"is not JSON ({reason_of(error)})"
        if isinstance(error, json.JSONDecodeError | RecursionError)
        else str(error)
    )


def messages(row: str) -> list[dict[str, str]]:
    """The conversation of one line, up to its last user message."""
    record = json.loads(row)
    keys = [
        key for key in ("prompt", "messages", "turns") if isinstance(record, dict) and key in record
    ]
    if not keys:
        raise ValueError("is no JSON object with `prompt`, `messages` or `turns`")
    key = keys[0]
    value = record[keys[0]]
    chat = [message(key, one) for one in (value if isinstance(value, list) else [value])]
    if isinstance(value, list) != (key != "prompt"):
        raise ValueError(
            f"has a `{key}` of the wrong kind: a prompt is a string, messages and turns are lists"
        )
    while chat and chat[-1]["role"] == "assistant":
        chat.pop()  # the target writes its own answer
    if not chat:
        raise ValueError(f"has a `{key}` without a user message")
    return chat


def message(key: str, given: Any) -> dict[str, str]:
    """One message; a bare string is a user's."""
    record: Mapping[str, Any] = (
        given if isinstance(given, dict) else {"role": "user", "content": given}
    )
    role = record.get("role")
    content = record.get("content")
    if not isinstance(role, str) or not isinstance(content, str) or not content.strip():
        raise ValueError(
            f"has a `{key}` without text: each message is a string or has a role and a content"
        )
    try:
        check_unicode(content)
    except SapwoodError as error:
        raise ValueError(f"has a `{key}` that is not valid Unicode") from error
    return {"role": role, "content": content}


def alone(chat: Sequence[Mapping[str, str]]) -> bool:
    """True for a single user message."""
    return len(chat) == 1 and chat[0]["role"] == "user"


def longer(
    path: Path, number: int, chat: Sequence[Mapping[str, str]], text: Tokenizer
) -> TrainPrompt:
    """A prompt of a conversation of several messages."""
    try:
        return TrainPrompt(tuple(text.chat(chat)), chat[-1]["content"])
    except SapwoodError as error:
        raise SapwoodError(f"line {number} of {path}: {error}") from error


# ------------------------------------------------------------- turns written by the target
def choose(draws: KeyedDraws, opened: float, long: float) -> PromptOpening:
    """A random opening: shares of turns with an opening, and with one for a long text."""
    place = draws.number()
    if place >= opened:
        return PromptOpening("")
    wanted = place < min(long, opened)
    return draws.weighted([one for one in OPENINGS if one.long == wanted], lambda one: one.weight)


def repeats_itself(tokens: Sequence[int]) -> bool:
    """True if the same long run of tokens occurs REPEATS times."""
    grams = Counter(tuple(tokens[start : start + GRAM]) for start in range(len(tokens) - GRAM + 1))
    return max(grams.values(), default=0) >= REPEATS


def finished(words: str, ended: bool) -> str:
    """A turn as a user might send it, in whole sentences unless it ended; empty if unusable."""
    if not ended:
        words = words[: max(words.rfind(mark) for mark in ".?!\n") + 1]
    words = words.strip()
    return words if len(words) >= SHORTEST and "\ufffd" not in words else ""


# ---------------------------------------------------------------------- tasks from passages
@dataclass(frozen=True, slots=True)
class PassageLibrary:
    """Texts for passages, sentences and questions."""

    shelves: Sequence[Sequence[str]]  # texts by origin; every origin has the same probability
    questions: Sequence[str]

    def piece(self, draws: KeyedDraws) -> str:
        """A random text."""
        return draws.one(draws.one([shelf for shelf in self.shelves if shelf])).strip()


def library(shelves: Sequence[Sequence[str]], turns: Sequence[str]) -> PassageLibrary:
    """A library of these texts, with the questions among the turns."""
    asked = [turn for turn in turns if turn.endswith("?") and "\n" not in turn and len(turn) < 200]
    return PassageLibrary(shelves, asked or ASKED)


def derive(texts: PassageLibrary, draws: KeyedDraws, text: Tokenizer, room: int) -> str:
    """A task about texts of the library; passages are at most `room` tokens long."""
    tasks = draws.weighted(TASKS, lambda one: one[1])[0]
    form = draws.weighted(tasks, lambda task: task.weight).form
    if tasks is SENTENCES:
        parts = [part for part in SENTENCE_ENDS.split(texts.piece(draws)) if 20 <= len(part) <= 300]
        return form.replace("{sentence}", draws.one(parts)) if parts else ""
    question = draws.one(texts.questions if draws.number() < 0.8 else ASKED)
    passage = gather(texts, draws, text, room)
    # the passage last: it may hold braces
    return form.replace("{question}", question).replace("{passage}", passage)


def gather(texts: PassageLibrary, draws: KeyedDraws, text: Tokenizer, room: int) -> str:
    """Texts joined by line breaks to a passage of a drawn length."""
    longest = min(LONG, room)
    wanted = int(min(SHORT, longest // 2) + draws.number() * (longest - min(SHORT, longest // 2)))
    pieces: list[str] = []
    tokens = 0
    while tokens < wanted and draws.left > 2:
        piece = texts.piece(draws)
        tokens += len(text.encode(piece, whole=False)) + 1
        pieces += [piece] if piece not in pieces else []
    return text.decode(text.encode("\n".join(pieces), whole=False)[:wanted]).rstrip("\ufffd")

"""What the target is asked: prompts of a file, turns that it wrote itself, tasks made of passages."""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar

from sapwood.errors import SapwoodError
from sapwood.rng import path_key, uniforms
from sapwood.template import render
from sapwood.text import Text, check_unicode
from sapwood.train.openings import ASKED, OPENINGS, PASSAGES, QUESTIONS, SENTENCES, Opening

MARK = "sapwood-user-words"  # stands for the user's words when the chat template is taken apart
SENTENCE_ENDS = re.compile(r"(?<=[.!?])\s+")
GRAM, REPEATS = 20, 3  # tokens that come in the same order so many times show a text that runs in circles
SHORTEST = 8  # characters of a turn worth answering
SHORT, LONG = 300, 800  # tokens of a passage
TASKS = ((PASSAGES, 0.4), (QUESTIONS, 0.35), (SENTENCES, 0.25))  # and how often each kind is asked

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Prompt:
    """A question in the target's tokens, up to where it answers."""

    tokens: tuple[int, ...]
    words: str  # the user's last words


@dataclass(frozen=True, slots=True)
class Prompts:
    """The prompts of a file."""

    items: Sequence[Prompt]
    long: int = 0  # left out for their length
    repeated: int = 0  # left out since they came before


class Draws:
    """A few uniform numbers of one key, one after the other."""

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
        """One of these, each as likely as the other."""
        return items[int(self.number() * len(items))]

    def weighted(self, items: Sequence[Item], weight: Callable[[Item], float]) -> Item:
        """One of these, by weight."""
        left = self.number() * sum(map(weight, items))
        for item in items:
            left -= weight(item)
            if left < 0:
                return item
        return items[-1]


# ------------------------------------------------------------------------------ the chat template
@dataclass(frozen=True, slots=True)
class Frame:
    """What a chat template puts before and after a user's words."""

    text: Text
    head: str
    tail: str  # ends where the assistant speaks
    trims: bool  # blanks around the words are taken away

    @classmethod
    def of(cls, text: Text, model: str) -> "Frame":
        """Take the template of this model apart."""
        if text.template is None:
            raise SapwoodError(f"model {model!r} has no chat template to write training data with; use a chat model")
        whole, wide = (spoken(text, words) for words in (MARK, f" {MARK} "))
        if whole.count(MARK) != 1:
            raise SapwoodError(f"the chat template of {model!r} changes the user's words; use another model")
        head, tail = whole.split(MARK)
        return cls(text, head, tail, trims=wide == whole)

    @property
    def opening(self) -> list[int]:
        """Tokens up to where the user speaks."""
        return self.text.encode(self.head, whole=False)

    @property
    def ends(self) -> list[int]:
        """Tokens that end a user's turn."""
        return sorted({*self.text.encode(self.tail, whole=False)[:1], *self.text.eos})

    def prompts(self, words: Sequence[str]) -> list[Prompt]:
        """A prompt of each user's words."""
        said = [word.strip() if self.trims else word for word in words]
        whole = [self.head + word + self.tail for word in said]
        encoded = self.text.tokenizer.encode_batch(whole, add_special_tokens=False)
        return [Prompt(tuple(one.ids), word) for one, word in zip(encoded, said, strict=True)]


def spoken(text: Text, words: str) -> str:
    """One user's turn in the chat template."""
    assert text.template is not None
    return render(text.template, [{"role": "user", "content": words}], **text.specials)


# --------------------------------------------------------------------------------- prompts of a file
def read(path: Path, frame: Frame, limit: int) -> Prompts:
    """The prompts of a JSONL file in the target's tokens; a bad line is an error that names it."""
    found: list[Prompt] = []
    chats = list(lines(path))
    plain = iter(frame.prompts([chat[0]["content"] for _, chat in chats if alone(chat)]))
    for number, chat in chats:
        found.append(next(plain) if alone(chat) else longer(path, number, chat, frame.text))
    unique = list({prompt.tokens: prompt for prompt in found}.values())
    short = [prompt for prompt in unique if len(prompt.tokens) <= limit]
    if not short:
        raise SapwoodError(f"no prompt of {path} is at most {limit} tokens long; bring shorter ones or a higher limit")
    return Prompts(short, long=len(unique) - len(short), repeated=len(found) - len(unique))


def content(path: Path) -> bytes:
    """What stands in a file of prompts."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise SapwoodError(f"the prompts file {path} cannot be read ({error.strerror}); check the path") from error


def mark(path: Path | None) -> str | None:
    """By what a file of prompts is known again, wherever it lies; None where there is none."""
    return sha256(content(path)).hexdigest() if path else None


def lines(path: Path) -> Iterator[tuple[int, list[dict[str, str]]]]:
    """Number and messages of each line that is not blank."""
    try:
        said = content(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        number = error.object[: error.start].count(b"\n") + 1
        raise SapwoodError(f"line {number} of {path} is not UTF-8 (byte {error.start}); save it as UTF-8") from error
    rows = [(number, row) for number, row in enumerate(said.split("\n"), 1) if row.strip()]
    if not rows:
        raise SapwoodError(f"{path} holds no prompts; give one JSON object per line, each with a `prompt`")
    for number, row in rows:
        try:
            yield number, messages(row)
        except (ValueError, RecursionError) as error:
            raise SapwoodError(f"line {number} of {path} {reason(error)}; mend or remove it") from error


def reason(error: Exception) -> str:
    """What is wrong with a line."""
    return f"is not JSON ({error})" if isinstance(error, json.JSONDecodeError | RecursionError) else str(error)


def messages(row: str) -> list[dict[str, str]]:
    """The conversation of one line, up to its last user's turn."""
    record = json.loads(row)
    keys = [key for key in ("prompt", "messages", "turns") if isinstance(record, dict) and key in record]
    if not keys:
        raise ValueError("is no JSON object with `prompt`, `messages` or `turns`")
    key, value = keys[0], record[keys[0]]
    chat = [message(key, one) for one in (value if isinstance(value, list) else [value])]
    if isinstance(value, list) != (key != "prompt"):
        raise ValueError(f"has a `{key}` of the wrong kind: a prompt is a string, messages and turns are lists")
    while chat and chat[-1]["role"] == "assistant":
        chat.pop()  # the target answers in its own words
    if not chat:
        raise ValueError(f"has a `{key}` in which no user speaks")
    return chat


def message(key: str, given: Any) -> dict[str, str]:
    """One message; a bare string is a user's."""
    record: Mapping[str, Any] = given if isinstance(given, dict) else {"role": "user", "content": given}
    role, content = record.get("role"), record.get("content")
    if not isinstance(role, str) or not isinstance(content, str) or not content.strip():
        raise ValueError(f"has a `{key}` without words: each message is a string or has a role and a content")
    try:
        check_unicode(content)
    except SapwoodError as error:
        raise ValueError(f"has a `{key}` that is not valid Unicode") from error
    return {"role": role, "content": content}


def alone(chat: Sequence[Mapping[str, str]]) -> bool:
    """True for a single turn of a user."""
    return len(chat) == 1 and chat[0]["role"] == "user"


def longer(path: Path, number: int, chat: Sequence[Mapping[str, str]], text: Text) -> Prompt:
    """A prompt of a conversation of several messages."""
    try:
        return Prompt(tuple(text.chat(chat)), chat[-1]["content"])
    except SapwoodError as error:
        raise SapwoodError(f"line {number} of {path}: {error}") from error


# ------------------------------------------------------------------------- turns the model wrote
def choose(draws: Draws, opened: float, long: float) -> Opening:
    """How a turn begins: shares of turns with an opening, and with one that a text follows; else with nothing."""
    place = draws.number()
    if place >= opened:
        return Opening("")
    wanted = place < min(long, opened)
    return draws.weighted([one for one in OPENINGS if one.long == wanted], lambda one: one.weight)


def circles(tokens: Sequence[int]) -> bool:
    """True when the same long run of tokens comes again and again."""
    grams = Counter(tuple(tokens[start : start + GRAM]) for start in range(len(tokens) - GRAM + 1))
    return max(grams.values(), default=0) >= REPEATS


def finished(words: str, ended: bool) -> str:
    """A turn as a user might send it: one that was cut off goes back to its last whole sentence; may be empty."""
    if not ended:
        words = words[: max(words.rfind(mark) for mark in ".?!\n") + 1]
    words = words.strip()
    return words if len(words) >= SHORTEST and "\ufffd" not in words else ""


# --------------------------------------------------------------------------- tasks made of passages
@dataclass(frozen=True, slots=True)
class Library:
    """Texts that passages, sentences and questions are taken from."""

    shelves: Sequence[Sequence[str]]  # texts by origin; each origin is taken as often as the others
    questions: Sequence[str]

    def piece(self, draws: Draws) -> str:
        """One of the texts."""
        return draws.one(draws.one([shelf for shelf in self.shelves if shelf])).strip()


def library(shelves: Sequence[Sequence[str]], turns: Sequence[str]) -> Library:
    """A library of these texts, with the questions found among the turns."""
    asked = [turn for turn in turns if turn.endswith("?") and "\n" not in turn and len(turn) < 200]
    return Library(shelves, asked or ASKED)


def derive(books: Library, draws: Draws, text: Text, room: int) -> str:
    """A task about texts of the library; passages are at most `room` tokens long."""
    tasks = draws.weighted(TASKS, lambda one: one[1])[0]
    form = draws.weighted(tasks, lambda task: task.weight).form
    if tasks is SENTENCES:
        parts = [part for part in SENTENCE_ENDS.split(books.piece(draws)) if 20 <= len(part) <= 300]
        return form.replace("{sentence}", draws.one(parts)) if parts else ""
    question = draws.one(books.questions if draws.number() < 0.8 else ASKED)
    passage = gather(books, draws, text, room)
    return form.replace("{question}", question).replace("{passage}", passage)  # the passage last: it may hold braces


def gather(books: Library, draws: Draws, text: Text, room: int) -> str:
    """Texts joined by line breaks to a passage of a drawn length."""
    longest = min(LONG, room)
    wanted = int(min(SHORT, longest // 2) + draws.number() * (longest - min(SHORT, longest // 2)))
    pieces: list[str] = []
    tokens = 0
    while tokens < wanted and draws.left > 2:
        piece = books.piece(draws)
        tokens += len(text.encode(piece, whole=False)) + 1
        pieces += [piece] if piece not in pieces else []
    return text.decode(text.encode("\n".join(pieces), whole=False)[:wanted]).rstrip("\ufffd")

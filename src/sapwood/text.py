"""From text to tokens and back: tokenizer, chat template, incremental detokenizing, stop strings."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from sapwood.errors import SapwoodError

BROKEN = "\ufffd"  # what a decoder shows for bytes that are no whole character yet
LEAD = 6  # prompt tokens that a detokenizer reads first, so that a leading blank is decided as inside a text
HOLD = 32  # tokens after which bytes that never became a character are shown as they are
SPECIALS = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")


@dataclass
class Text:
    """A model's tokenizer, its chat template and the tokens that end its text."""

    tokenizer: Tokenizer
    template: str | None = None  # Jinja source
    eos: tuple[int, ...] = ()  # tokens that end the text
    bos: int | None = None  # put before a text where the tokenizer does not do it itself
    specials: Mapping[str, str] = field(default_factory=dict)  # bos_token and so on, as templates name them
    memory: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)  # what others made of the tokens

    @classmethod
    def load(cls, folder: Path) -> "Text":
        """Read the tokenizer of a model folder."""
        config = read(folder, "tokenizer_config.json")
        tokenizer = read_tokenizer(folder)
        specials = {name: spelled(config[name]) for name in SPECIALS if config.get(name)}
        bos = tokenizer.token_to_id(specials.get("bos_token", "")) if config.get("add_bos_token") else None
        return cls(tokenizer, read_template(folder, config), find_eos(folder, tokenizer, specials), bos, specials)

    @property
    def size(self) -> int:
        """Tokens in the vocabulary, added ones included."""
        return self.tokenizer.get_vocab_size()

    def encode(self, text: str, *, whole: bool = True) -> list[int]:
        """Tokens of a text; `whole` lets the tokenizer mark its beginning where the model wants that."""
        check_unicode(text)
        tokens: list[int] = self.tokenizer.encode(text, add_special_tokens=whole).ids
        return [self.bos, *tokens] if whole and self.bos is not None and tokens[:1] != [self.bos] else tokens

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of these tokens; special ones are not shown."""
        return self.tokenizer.decode(list(tokens), skip_special_tokens=True)

    def show(self, tokens: Sequence[int]) -> str:
        """Text of these tokens, special ones shown."""
        return self.tokenizer.decode(list(tokens), skip_special_tokens=False)

    def spell(self, token: int) -> str:
        """One token by itself, special ones shown."""
        return self.show([token])

    def literal(self, text: str) -> list[int]:
        """Tokens of a text in which the names of special tokens are only words."""
        check_unicode(text)
        if "literal" not in self.memory:
            self.memory["literal"] = without_specials(self.tokenizer)
        tokens: list[int] = self.memory["literal"].encode(text, add_special_tokens=False).ids
        return tokens

    def special_words(self) -> dict[str, int]:
        """The special tokens by their text."""
        if "special" not in self.memory:
            added = self.tokenizer.get_added_tokens_decoder().items()
            self.memory["special"] = {token.content: number for number, token in added if token.special}
        found: dict[str, int] = self.memory["special"]
        return found

    def chat(self, messages: Sequence[Mapping[str, Any]], **variables: Any) -> list[int]:
        """Tokens of a conversation, up to where the assistant speaks next; what was said in it stays text."""
        return self.tell(messages, **variables).tokens()

    def tell(self, messages: Sequence[Mapping[str, Any]], **variables: Any) -> "Told":
        """A conversation as the template tells it; what it is given besides goes by name.

        The template marks turns with special tokens. The same characters in a message are put aside while the
        template runs, so that nobody ends a turn from inside one.
        """
        from sapwood.template import render

        if self.template is None:
            raise SapwoodError("this model has no chat template; give it one text and raw=True")
        aside = Aside(list(self.special_words()), (messages, variables))
        shown = render(self.template, aside.put(messages), **self.specials, **aside.put(variables))
        return Told(self, shown, aside)


@dataclass(frozen=True, slots=True)
class Told:
    """What a template made of a conversation."""

    text: Text
    shown: str
    aside: "Aside"

    def tokens(self) -> list[int]:
        """Its tokens; only the template's own special tokens are special."""
        if not self.aside.used:
            return self.text.encode(self.shown, whole=False)
        numbers, tokens = self.text.special_words(), list[int]()
        for place, piece in enumerate(self.aside.special.split(self.shown)):  # every second one is a special token
            tokens += [numbers[piece]] if place % 2 else self.text.literal(self.aside.back(piece))
        return tokens


class Aside:
    """Words that are taken out of what a template is given, and put back into what it wrote."""

    def __init__(self, words: Sequence[str], given: Any) -> None:
        longest = sorted(words, key=len, reverse=True)
        self.special = re.compile(f"({'|'.join(map(re.escape, longest))})" if longest else r"((?!))")
        self.used: list[str] = []
        sign, everything = 0, "".join(strings(given))
        while f"@{sign}#" in everything:  # digits and signs, which no template spells differently
            sign += 1
        self._form = re.compile(rf"@{sign}#(\d+)@")
        self._sign = sign

    def put(self, value: Any) -> Any:
        """The same value, with a mark in place of every such word."""
        if isinstance(value, str):
            return self.special.sub(self._mark, value)
        if isinstance(value, Mapping):
            return {self.put(name): self.put(inner) for name, inner in value.items()}
        if isinstance(value, Sequence) and not isinstance(value, bytes):
            return [self.put(inner) for inner in value]
        return value

    def _mark(self, found: "re.Match[str]") -> str:
        self.used.append(found.group())
        return f"@{self._sign}#{len(self.used) - 1}@"

    def back(self, text: str) -> str:
        """The text with the words where they were."""
        return self._form.sub(lambda found: self.used[int(found.group(1))], text)


def strings(value: Any) -> Iterator[str]:
    """Every text in a value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            yield from strings(name)
            yield from strings(inner)
    elif isinstance(value, Sequence) and not isinstance(value, bytes):
        for inner in value:
            yield from strings(inner)


def without_specials(tokenizer: Any) -> Any:
    """The same tokenizer, to which the text of a special token is text."""
    if (found := getattr(tokenizer, "literal", None)) is not None:
        return found
    made = Tokenizer.from_str(tokenizer.to_str())
    made.encode_special_tokens = True
    return made


def check_unicode(text: str) -> None:
    """Refuse lone surrogates, which are what undecodable bytes become in arguments and JSON."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise SapwoodError(f"the text is not valid Unicode at character {error.start}; use UTF-8") from error


class Detokenizer:
    """Text as tokens arrive; reads a short window again, never the whole output."""

    def __init__(self, text: Text, prompt: Sequence[int] = ()) -> None:
        self._text = text
        self._restart(list(prompt[-LEAD:]))
        self._shown = len(text.decode(self._window).rstrip(BROKEN))  # a prompt may end inside a character

    def _restart(self, lead: list[int]) -> None:
        self._window, self._lead = lead, len(lead)  # the first `lead` tokens have been shown
        self._shown = len(self._text.decode(lead))  # characters of the window that are out

    def push(self, tokens: Sequence[int]) -> str:
        """The text that is certain after these tokens; half a character waits for its other half."""
        return "".join([self._push(token) for token in tokens])

    def _push(self, token: int) -> str:
        self._window.append(token)
        full = self._text.decode(self._window)
        late = len(self._window) - self._lead > HOLD
        sure = full if late else full.rstrip(BROKEN)
        out, self._shown = sure[self._shown :], max(self._shown, len(sure))
        if len(sure) == len(full) and (out or late):  # a token without text stays, to be read with the next
            self._restart(self._window[self._lead :][-LEAD:])
        return out

    def flush(self) -> str:
        """What is left at the end, as it is."""
        out = self._text.decode(self._window)[self._shown :]
        self._restart([])
        return out


class StopStrings:
    """Finds the first stop string to be completed; text that may be the start of one is held back."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.hit: str | None = None

    def push(self, text: str) -> str:
        """The text that is certain not to belong to a stop string; nothing once one was hit."""
        if self.hit is not None:
            return ""
        text, self._held = self._held + text, ""
        found = [(text.index(stop) + len(stop), text.index(stop), stop) for stop in self._stops if stop in text]
        if found:
            _, start, self.hit = min(found)
            return text[:start]
        keep = max((overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self) -> str:
        """What was held back, at the end of the text."""
        out, self._held = self._held, ""
        return out


def overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that is a beginning of `stop`, not all of it."""
    longest = min(len(text), len(stop) - 1)
    return next((size for size in range(longest, 0, -1) if stop.startswith(text[-size:])), 0)


# ------------------------------------------------------------------------------- reading a folder
def read(folder: Path, name: str) -> dict[str, Any]:
    """A JSON file of the folder; empty where there is none."""
    path = folder / name
    try:
        record = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except ValueError as error:
        raise SapwoodError(f"{path} is not JSON ({error}); download the model again") from error
    return record if isinstance(record, dict) else {}


def read_tokenizer(folder: Path) -> Tokenizer:
    """The fast tokenizer; one that is kept in an older form is converted by transformers."""
    path = folder / "tokenizer.json"
    try:
        if path.is_file():
            return Tokenizer.from_file(str(path))  # 0.1 s, where AutoTokenizer takes seconds
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(folder).backend_tokenizer
    except Exception as error:  # both libraries raise bare exceptions
        raise SapwoodError(f"{folder} has no tokenizer that can be read; save tokenizer.json there") from error


def read_template(folder: Path, config: Mapping[str, Any]) -> str | None:
    """The chat template, from its own file or from the tokenizer's settings."""
    path = folder / "chat_template.jinja"
    try:
        if path.is_file():
            return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise SapwoodError(f"{path} is not UTF-8 at byte {error.start}; download the model again") from error
    found = config.get("chat_template") or read(folder, "chat_template.json").get("chat_template")
    if isinstance(found, list):  # several by name
        named = {item["name"]: item["template"] for item in found}
        found = named.get("default")
    return found if isinstance(found, str) else None


def find_eos(folder: Path, tokenizer: Tokenizer, specials: Mapping[str, str]) -> tuple[int, ...]:
    """Every token that ends the text, by the model's settings and by the tokenizer's."""
    named = read(folder, "generation_config.json").get("eos_token_id")
    if named is None:
        named = read(folder, "config.json").get("eos_token_id")
    found = list(named) if isinstance(named, list) else [named]
    found.append(tokenizer.token_to_id(specials.get("eos_token", "")))
    return tuple(dict.fromkeys(token for token in found if isinstance(token, int)))


def spelled(value: Any) -> str:
    """A special token's text, which older files keep in a record."""
    return str(value["content"] if isinstance(value, dict) else value)

"""A model's tokenizer: text to tokens and back, special tokens, chat template."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from sapwood.common.extras import needed_by
from sapwood.errors import SapwoodError

if TYPE_CHECKING:
    from tokenizers import Tokenizer as FastTokenizer

BROKEN = "\ufffd"  # what a decoder writes for bytes that are no whole character yet
SPECIALS = (
    "bos_token",
    "eos_token",
    "unk_token",
    "pad_token",
    "sep_token",
    "cls_token",
    "mask_token",
)


@dataclass
class Tokenizer:
    """A model's tokenizer, its chat template and the tokens that end its text."""

    tokenizer: "FastTokenizer"
    template: str | None = None  # Jinja source
    eos: tuple[int, ...] = ()  # tokens that end the text
    bos: int | None = None  # put before a text where the tokenizer does not do it itself
    # text of bos_token and so on, as templates name them
    specials: Mapping[str, str] = field(default_factory=dict)
    # objects made once from the tokens, by name
    cache: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def load(cls, folder: Path) -> "Tokenizer":
        """Read the tokenizer of a model folder."""
        config = read(folder, "tokenizer_config.json")
        tokenizer = read_tokenizer(folder)
        specials = {name: special_text(config[name]) for name in SPECIALS if config.get(name)}
        bos = (
            tokenizer.token_to_id(specials.get("bos_token", ""))
            if config.get("add_bos_token")
            else None
        )
        return cls(
            tokenizer,
            read_template(folder, config),
            find_eos(folder, tokenizer, specials),
            bos,
            specials,
        )

    @property
    def size(self) -> int:
        """Tokens in the vocabulary, added ones included."""
        return self.tokenizer.get_vocab_size()

    def encode(self, text: str, *, whole: bool = True) -> list[int]:
        """Tokens of a text; `whole` adds the special tokens that the model wants around a text."""
        check_unicode(text)
        tokens: list[int] = self.tokenizer.encode(text, add_special_tokens=whole).ids
        return (
            [self.bos, *tokens]
            if whole and self.bos is not None and tokens[:1] != [self.bos]
            else tokens
        )

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of these tokens, without special ones."""
        return self.tokenizer.decode(list(tokens), skip_special_tokens=True)

    def text_alone(self, token: int) -> str | None:
        """Text of a token whose neighbours do not change it; None if they may, or if it is empty.

        With byte-level tokenizers these are all tokens of whole characters.
        """
        known: dict[int, str | None] = self.cache.setdefault("alone", {})
        if token not in known:
            text = self.decode([token]) if self.byte_level else ""
            known[token] = text if text and BROKEN not in text else None
        return known[token]

    @property
    def byte_level(self) -> bool:
        """True when the bytes of a text are those of its tokens in a row, and nothing else."""
        if "byte_level" not in self.cache:
            self.cache["byte_level"] = joins_bytes(self.tokenizer.decoder)
        return bool(self.cache["byte_level"])

    def decode_showing(self, tokens: Sequence[int], shown: frozenset[int]) -> str:
        """Text of these tokens, of special ones only with those that are shown."""
        pieces = []
        start = 0
        for place, token in enumerate(tokens):
            if token in shown:
                pieces += [self.decode(tokens[start:place]), self.spell(token)]
                start = place + 1
        return "".join([*pieces, self.decode(tokens[start:])])

    def show(self, tokens: Sequence[int]) -> str:
        """Text of these tokens, with special ones."""
        return self.tokenizer.decode(list(tokens), skip_special_tokens=False)

    def spell(self, token: int) -> str:
        """Text of one token by itself, special or not."""
        return self.show([token])

    def literal(self, text: str) -> list[int]:
        """Tokens of a text in which the names of special tokens are plain text."""
        check_unicode(text)
        if "literal" not in self.cache:
            self.cache["literal"] = literal_tokenizer(self.tokenizer)
        tokens: list[int] = self.cache["literal"].encode(text, add_special_tokens=False).ids
        return tokens

    def special_tokens(self) -> dict[str, int]:
        """Ids of the special tokens by their text."""
        if "special" not in self.cache:
            added = self.tokenizer.get_added_tokens_decoder().items()
            self.cache["special"] = {
                token.content: number for number, token in added if token.special
            }
        found: dict[str, int] = self.cache["special"]
        return found

    def chat(self, messages: Sequence[Mapping[str, Any]], **variables: Any) -> list[int]:
        """Tokens of a conversation up to the assistant's next turn; messages are plain text."""
        return self.render_chat(messages, **variables).tokens()

    def render_chat(
        self, messages: Sequence[Mapping[str, Any]], **variables: Any
    ) -> "RenderedChat":
        """A conversation rendered by the chat template, which gets the variables by name.

        The template marks turns with special tokens. The same characters in a message are escaped
        while the template runs, so that a message cannot end its own turn.
        """
        with needed_by("a chat template"):
            from sapwood.tokenizer.chat_template import render

        if self.template is None:
            raise SapwoodError("this model has no chat template; give it one text and raw=True")
        escapes = EscapedText(list(self.special_tokens()), (messages, variables))
        text = render(
            self.template,
            escapes.escape(messages),
            **self.specials,
            **escapes.escape(variables),
        )
        return RenderedChat(self, text, escapes)


@dataclass(frozen=True, slots=True)
class RenderedChat:
    """A conversation rendered by a chat template."""

    tokenizer: Tokenizer
    text: str
    escapes: "EscapedText"

    def tokens(self) -> list[int]:
        """Its tokens; only the template's own special tokens are special."""
        if not self.escapes.used:
            return self.tokenizer.encode(self.text, whole=False)
        ids = self.tokenizer.special_tokens()
        tokens = list[int]()
        # every second piece is a special token
        for index, piece in enumerate(self.escapes.special.split(self.text)):
            if index % 2:
                tokens.append(ids[piece])
            else:
                tokens += self.tokenizer.literal(self.escapes.restore(piece))
        return tokens


class EscapedText:
    """Replaces special tokens in a template's input by marks, and restores them in its output."""

    def __init__(self, words: Sequence[str], given: Any) -> None:
        longest = sorted(words, key=len, reverse=True)
        self.special = re.compile(
            f"({'|'.join(map(re.escape, longest))})" if longest else r"((?!))"
        )
        self.used: list[str] = []
        number = 0
        all_text = "".join(strings(given))
        while f"@{number}#" in all_text:  # digits and signs, which no template changes
            number += 1
        self._form = re.compile(rf"@{number}#(\d+)@")
        self._number = number

    def escape(self, value: Any) -> Any:
        """The same value with a mark in place of every special token."""
        if isinstance(value, str):
            return self.special.sub(self._mark, value)
        if isinstance(value, Mapping):
            return {self.escape(name): self.escape(inner) for name, inner in value.items()}
        if isinstance(value, Sequence) and not isinstance(value, bytes):
            return [self.escape(inner) for inner in value]
        return value

    def _mark(self, found: "re.Match[str]") -> str:
        self.used.append(found.group())
        return f"@{self._number}#{len(self.used) - 1}@"

    def restore(self, text: str) -> str:
        """The text with the special tokens in place of their marks."""
        return self._form.sub(lambda found: self.used[int(found.group(1))], text)


def joins_bytes(decoder: Any) -> bool:
    """True when a decoder joins the bytes of tokens, and strips nothing at the ends."""
    if decoder is None:
        return False
    record = json.loads(decoder.__getstate__())
    parts = record["decoders"] if record["type"] == "Sequence" else [record]
    kinds = {part["type"] for part in parts}
    return "ByteLevel" in kinds and kinds <= {"ByteLevel", "ByteFallback", "Fuse", "Replace"}


def strings(value: Any) -> Iterator[str]:
    """Every string in a value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            yield from strings(name)
            yield from strings(inner)
    elif isinstance(value, Sequence) and not isinstance(value, bytes):
        for inner in value:
            yield from strings(inner)


@runtime_checkable
class LiteralTokenizer(Protocol):
    """A tokenizer that has a form for plain text itself."""

    @property
    def literal(self) -> Any:
        """The tokenizer for which the text of a special token is plain text."""


def literal_tokenizer(tokenizer: Any) -> Any:
    """The same tokenizer, for which the text of a special token is plain text."""
    if isinstance(tokenizer, LiteralTokenizer):
        return tokenizer.literal
    from tokenizers import Tokenizer as FastTokenizer

    made = FastTokenizer.from_str(tokenizer.to_str())
    made.encode_special_tokens = True
    return made


def check_unicode(text: str) -> None:
    """Refuse lone surrogates, which undecodable bytes become in arguments and JSON."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise SapwoodError(
            f"the text is not valid Unicode at character {error.start}; use UTF-8"
        ) from error


# ------------------------------------------------------------------------------- reading a folder
def read(folder: Path, name: str) -> dict[str, Any]:
    """A JSON file of the folder; empty where there is none."""
    path = folder / name
    try:
        record = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except ValueError as error:
        raise SapwoodError(f"{path} is not JSON ({error}); download the model again") from error
    return record if isinstance(record, dict) else {}


def read_tokenizer(folder: Path) -> "FastTokenizer":
    """The fast tokenizer; one in an older format is converted by transformers."""
    with needed_by("a tokenizer file"):
        from tokenizers import Tokenizer as FastTokenizer
    path = folder / "tokenizer.json"
    try:
        if path.is_file():
            return FastTokenizer.from_file(str(path))  # 0.1 s, where AutoTokenizer takes seconds
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(folder).backend_tokenizer
    except Exception as error:  # both libraries raise bare exceptions
        raise SapwoodError(
            f"{folder} has no tokenizer that can be read; save tokenizer.json there"
        ) from error


def read_template(folder: Path, config: Mapping[str, Any]) -> str | None:
    """The chat template, from its own file or from the tokenizer's settings."""
    path = folder / "chat_template.jinja"
    try:
        if path.is_file():
            return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise SapwoodError(
            f"{path} is not UTF-8 at byte {error.start}; download the model again"
        ) from error
    found = config.get("chat_template") or read(folder, "chat_template.json").get("chat_template")
    if isinstance(found, list):  # several by name
        named = {item["name"]: item["template"] for item in found}
        found = named.get("default")
    return found if isinstance(found, str) else None


def find_eos(
    folder: Path, tokenizer: "FastTokenizer", specials: Mapping[str, str]
) -> tuple[int, ...]:
    """Every token that ends the text, by the model's settings and by the tokenizer's."""
    named = read(folder, "generation_config.json").get("eos_token_id")
    if named is None:
        named = read(folder, "config.json").get("eos_token_id")
    found = list(named) if isinstance(named, list) else [named]
    found.append(tokenizer.token_to_id(specials.get("eos_token", "")))
    return tuple(dict.fromkeys(token for token in found if isinstance(token, int)))


def special_text(value: Any) -> str:
    """Text of a special token, which older files store in a record."""
    return str(value["content"] if isinstance(value, dict) else value)

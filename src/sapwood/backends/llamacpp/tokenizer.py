"""The tokenizer of a GGUF file, with the methods of `tokenizers.Tokenizer` that are used here."""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from sapwood.backends.llamacpp.weights import GgufModel
from sapwood.errors import SapwoodError

PIECE = 256  # bytes; the text of almost every token fits


@dataclass(frozen=True, slots=True)
class Encoding:
    """Tokens of a text."""

    ids: list[int]


@dataclass(frozen=True, slots=True)
class Special:
    """A special token."""

    content: str
    special: bool = True


class Literal:
    """The tokenizer of text in which names of special tokens are plain text."""

    def __init__(self, tokenizer: "GgufTokenizer") -> None:
        self._tokenizer = tokenizer

    def encode(self, text: str, add_special_tokens: bool = False) -> Encoding:
        """Tokens of a text."""
        return self._tokenizer.encode(text, add_special_tokens, special=False)


class GgufTokenizer:
    """Text to tokens and back, by llama.cpp."""

    decoder = None  # of the tokenizers library: neighbours may change the text of a token

    def __init__(self, weights: GgufModel) -> None:
        self._weights = weights
        self._llama = weights.llama
        self._vocabulary = weights.vocabulary
        self.piece = lru_cache(maxsize=None)(self._piece)  # at most the vocabulary, twice

    def encode(
        self, text: str, add_special_tokens: bool = True, *, special: bool = True
    ) -> Encoding:
        """Tokens of a text; names of special tokens in it are read as these, or as text."""
        data = text.encode()
        room = len(data) + 16  # no token is shorter than a byte; a few for start and end
        buffer = (self._llama.llama_token * room)()
        marks = add_special_tokens, special
        count = self._llama.llama_tokenize(self._vocabulary, data, len(data), buffer, room, *marks)
        if count < 0:
            raise SapwoodError(
                f"llama.cpp could not read a text of {len(data)} bytes as tokens; shorten it"
            )
        return Encoding(list(buffer[:count]))

    def decode(self, tokens: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Text of these tokens; incomplete characters become the replacement character."""
        pieces = [self.piece(int(token), not skip_special_tokens) for token in tokens]
        return b"".join(pieces).decode("utf-8", "replace")

    def _piece(self, token: int, special: bool) -> bytes:
        size = PIECE
        while True:
            buffer = ctypes.create_string_buffer(size)
            count = self._llama.llama_token_to_piece(
                self._vocabulary, token, buffer, size, 0, special
            )
            if count >= 0:
                return buffer.raw[:count]
            size = -count

    def get_added_tokens_decoder(self) -> dict[int, Special]:
        """The special tokens by number."""
        is_control = self._llama.llama_vocab_is_control
        found = [
            token for token in range(self._weights.vocab) if is_control(self._vocabulary, token)
        ]
        return {
            token: Special(self.piece(token, True).decode("utf-8", "replace")) for token in found
        }

    @property
    def literal(self) -> Literal:
        """The same tokenizer, to which a special token's name is text."""
        return Literal(self)

    def get_vocab_size(self) -> int:
        """Tokens in the vocabulary."""
        return self._weights.vocab

    @cached_property
    def specials(self) -> dict[str, str]:
        """The text of the special tokens that chat templates name."""
        asked = {
            f"{name}_token": getattr(self._llama, f"llama_vocab_{name}")
            for name in ("bos", "eos", "sep", "pad")
        }
        found = {name: int(ask(self._vocabulary)) for name, ask in asked.items()}
        return {
            name: self.piece(token, True).decode("utf-8", "replace")
            for name, token in found.items()
            if token >= 0
        }

    @cached_property
    def ends(self) -> tuple[int, ...]:
        """Every token that ends a text."""
        is_end = self._llama.llama_vocab_is_eog
        return tuple(
            token for token in range(self._weights.vocab) if is_end(self._vocabulary, token)
        )

    @cached_property
    def template(self) -> str | None:
        """The chat template's source."""
        found: bytes | None = self._llama.llama_model_chat_template(self._weights.model, None)
        return found.decode("utf-8", "replace") if found else None

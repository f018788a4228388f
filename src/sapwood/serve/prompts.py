"""Prompts as tokens: conversations in which what a user writes stays text, and texts to continue."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from sapwood.errors import SapwoodError
from sapwood.records import BackendInfo
from sapwood.request import check_ids, check_text, fitting
from sapwood.serve.errors import ApiError
from sapwood.text import Text

PER_TOKEN = 8  # characters of a text that are read first, per token of the context


class Prompts:
    """Reads the prompts of one model."""

    def __init__(self, info: BackendInfo, text: Text | None) -> None:
        self.info, self._text = info, text

    @property
    def text(self) -> Text:
        """The tokenizer; a model without one takes token ids alone."""
        if self._text is None:
            raise ApiError(400, "this model came without a tokenizer; send the prompt as token ids", "prompt")
        return self._text

    def raw(self, prompt: str | Sequence[int]) -> tuple[int, ...]:
        """Tokens of a text to continue, or of token ids."""
        if not isinstance(prompt, str):
            check_ids(prompt, "the prompt", self.info)
            return tuple(fitting(list(prompt), self.info))
        check_text(prompt)
        self.check_length(prompt)
        return tuple(fitting(self.text.encode(prompt), self.info))

    def chat(self, messages: Sequence[Mapping[str, Any]], **variables: Any) -> tuple[int, ...]:
        """Tokens of a conversation, up to where the assistant speaks next."""
        if self.text.template is None:
            raise SapwoodError("this model has no chat template; use /v1/completions")
        told = self.text.tell(messages, **variables)
        self.check_length(told.shown)
        return tuple(fitting(told.tokens(), self.info))

    def literal(self, piece: str) -> list[int]:
        """Tokens of plain text."""
        return [] if self._text is None else self._text.literal(piece)

    def check_length(self, text: str) -> None:
        """Refuse a text far beyond the context by its beginning, before all of it is read."""
        size = self.info.context * PER_TOKEN
        while size < len(text):
            count = len(self.text.encode(text[:size], whole=False))
            if count > self.info.context + PER_TOKEN:
                raise ApiError(
                    400,
                    f"the prompt has more than {count} tokens, but {self.info.model} holds {self.info.context} "
                    "with its answer; shorten it",
                    code="context_length_exceeded",
                )
            size *= 4

    def spell(self, token: int) -> str:
        """A token's own text."""
        return self._text.spell(token) if self._text else str(token)

    def bytes_of(self, token: int) -> list[int]:
        """A token's bytes, which need not be whole characters."""
        word = self.text.tokenizer.id_to_token(token) if self._text else None
        if word is None:
            return list(self.spell(token).encode())
        if match := re.fullmatch(r"<0x([0-9A-Fa-f]{2})>", word):
            return [int(match.group(1), 16)]
        shown = self.spell(token)
        if "\ufffd" in shown and all(letter in LETTERS for letter in word):
            return [LETTERS[letter] for letter in word]
        return list(shown.encode())


def letters() -> dict[str, int]:
    """The characters that byte-level vocabularies write for the 256 bytes."""
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    rest = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + place): byte for place, byte in enumerate(rest)}


LETTERS = letters()

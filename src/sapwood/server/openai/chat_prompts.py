"""Tokens of prompts: conversations through the chat template, and texts to continue."""

import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from sapwood.core.types import BackendInfo
from sapwood.engine.input_processor import PROMPT, check_ids, check_text, fitting
from sapwood.errors import SapwoodError
from sapwood.server.errors import ApiError
from sapwood.server.openai.model_formats import OutputSyntax, syntax_of
from sapwood.tokenizer.detokenizer import Detokenizer
from sapwood.tokenizer.tokenizer import Tokenizer

PER_TOKEN = 8  # characters per token of the context that are tokenized before a longer text


class ChatPrompts:
    """Tokenizes the prompts of one model."""

    def __init__(self, info: BackendInfo, tokenizer: Tokenizer | None) -> None:
        self.info = info
        self._tokenizer = tokenizer

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer; a model without one takes token ids only."""
        if self._tokenizer is None:
            raise ApiError(
                400, "this model came without a tokenizer; send the prompt as token ids", "prompt"
            )
        return self._tokenizer

    def raw(self, prompt: str | Sequence[int]) -> tuple[int, ...]:
        """Tokens of a text to continue, or of token ids."""
        if not isinstance(prompt, str):
            check_ids(prompt, PROMPT, self.info)
            return tuple(fitting(list(prompt), self.info))
        check_text(prompt)
        self.check_length(prompt)
        return tuple(fitting(self.tokenizer.encode(prompt), self.info))

    def chat(
        self, messages: Sequence[Mapping[str, Any]], **variables: Any
    ) -> tuple[tuple[int, ...], OutputSyntax]:
        """Tokens of a conversation up to the assistant's next turn, and the syntax of that turn."""
        if self.tokenizer.template is None:
            raise SapwoodError("this model has no chat template; use /v1/completions")
        rendered = self.tokenizer.render_chat(messages, **variables)
        self.check_length(rendered.text)
        syntax = syntax_of(self.tokenizer.template, rendered.text)
        return tuple(fitting(rendered.tokens(), self.info)), syntax

    def literal(self, piece: str) -> list[int]:
        """Tokens of plain text."""
        return [] if self._tokenizer is None else self._tokenizer.literal(piece)

    def check_length(self, text: str) -> None:
        """Refuse a text far beyond the context by its beginning, before all of it is tokenized."""
        size = self.info.context * PER_TOKEN
        while size < len(text):
            count = len(self.tokenizer.encode(text[:size], whole=False))
            if count > self.info.context + PER_TOKEN:
                raise ApiError(
                    400,
                    f"the prompt has more than {count} tokens, but {self.info.model} holds "
                    f"{self.info.context} with its output; shorten it",
                    code="context_length_exceeded",
                )
            size *= 4

    def spell(self, token: int) -> str:
        """Text of one token."""
        return self._tokenizer.spell(token) if self._tokenizer else str(token)

    def offsets(self, tokens: Sequence[int], text: str) -> list[int]:
        """Characters of a text before each of its tokens; a token that it lacks has no length."""
        if self._tokenizer is None:
            return [0] * len(tokens)
        found: list[int] = []
        place = 0
        detokenizer = Detokenizer(self._tokenizer)
        for token in tokens:
            found.append(place)
            added = self.spell(token) if token in self._special else detokenizer.push([token])
            place += len(added) if text.startswith(added, place) else 0
        return found

    @cached_property
    def _special(self) -> frozenset[int]:
        return frozenset(self.tokenizer.special_tokens().values())

    def bytes_of(self, token: int) -> list[int]:
        """Bytes of one token, which need not be whole characters."""
        entry = self.tokenizer.tokenizer.id_to_token(token) if self._tokenizer else None
        if entry is None:
            return list(self.spell(token).encode())
        if match := re.fullmatch(r"<0x([0-9A-Fa-f]{2})>", entry):
            return [int(match.group(1), 16)]
        text = self.spell(token)
        if "\ufffd" in text and all(char in BYTE_OF_CHAR for char in entry):
            return [BYTE_OF_CHAR[char] for char in entry]
        return list(text.encode())


def byte_chars() -> dict[str, int]:
    """The bytes by the characters that byte-level vocabularies write for them."""
    plain = [
        *range(ord("!"), ord("~") + 1),
        *range(ord("¡"), ord("¬") + 1),
        *range(ord("®"), ord("ÿ") + 1),
    ]
    rest = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {
        chr(256 + index): byte for index, byte in enumerate(rest)
    }


BYTE_OF_CHAR = byte_chars()

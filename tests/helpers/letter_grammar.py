"""A vocabulary of three letters and an end, for grammars over toy targets."""

from functools import cache
from typing import Any

from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from sapwood.structured_output.compiled import CompiledGrammar

LETTERS, END = "abc", 3
SIZE = 4


class Letters:
    """What llguidance asks of a tokenizer."""

    eos_token_id = END
    bos_token_id = None
    tokens = (b"a", b"b", b"c", b"<end>")
    special_token_ids = (END,)

    def __call__(self, text: bytes) -> list[int]:
        return [max(0, LETTERS.find(chr(letter))) for letter in text]


@cache
def tokenizer() -> Any:
    return LLTokenizer(TokenizerWrapper(Letters()))


def pattern(regex: str) -> CompiledGrammar:
    """A regular expression over the letters."""
    return CompiledGrammar(tokenizer(), LLMatcher.grammar_from_regex(regex), SIZE)


def rules(lark: str) -> CompiledGrammar:
    """Context-free rules over the letters."""
    return CompiledGrammar(tokenizer(), LLMatcher.grammar_from_lark(lark), SIZE)

"""Grammars compiled to masks over a model's tokens, by llguidance.

Every state has a matcher of its own, copied for each step (4 microseconds).
"""

import threading
from collections import OrderedDict
from typing import Any

import numpy as np

from sapwood.common.extras import needed_by
from sapwood.core.array_types import BoolArray
from sapwood.errors import SapwoodError
from sapwood.structured_output.grammar import Grammar
from sapwood.structured_output.sandboxed_compile import COMPILER
from sapwood.tokenizer.tokenizer import Tokenizer

CACHED = 128  # compiled grammars cached per tokenizer
# JSON on one line: models write it so, most tokens are forced, and whitespace cannot go on forever
STYLE: Any = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
}


class CompiledGrammar:
    """A grammar over the tokens of one model."""

    def __init__(self, tokenizer: Any, source: str, vocab: int) -> None:
        from llguidance import LLMatcher

        self.vocab = vocab
        self.ends = frozenset[int](tokenizer.eos_tokens)
        # an empty mask, one bit per token
        self._empty = np.zeros((tokenizer.vocab_size + 31) // 32, np.int32)
        self._first = LLMatcher(tokenizer, source, log_level=0, limits=limits())
        if self._first.is_error():
            raise SapwoodError(f"the grammar cannot be used: {fault(self._first)}")
        if not self.begin().allowed().any():
            raise SapwoodError(
                "the grammar allows no text at all; look for a rule that needs itself"
            )

    def begin(self) -> "GrammarState":
        """The state before the first token."""
        return GrammarState(self, self._first.deep_copy())

    def mask(self, matcher: Any) -> BoolArray:
        """Mask of the tokens that may come next, [vocab]."""
        words = self._empty.copy()
        matcher.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)
        if matcher.is_error():
            raise SapwoodError(
                f"the grammar grew too large at this token ({fault(matcher)}); make it simpler"
            )
        bits = np.unpackbits(words.view(np.uint8), bitorder="little")[: self.vocab]
        return np.pad(bits, (0, self.vocab - len(bits))).view(np.bool_)


class GrammarState:
    """A state of a compiled grammar."""

    __slots__ = ("_allowed", "_matcher", "_rules")

    def __init__(self, rules: CompiledGrammar, matcher: Any) -> None:
        self._rules = rules
        self._matcher = matcher
        self._allowed: BoolArray | None = None

    @property
    def done(self) -> bool:
        """True when only the end may follow."""
        return bool(self._matcher.is_stopped())

    def allowed(self) -> BoolArray:
        """Mask of the tokens that may come next, computed on first use."""
        if self._allowed is None:
            self._allowed = self._rules.mask(self._matcher)
        return self._allowed

    def after(self, token: int) -> "GrammarState | None":
        """The state after one more token; None when it is forbidden."""
        if self.done:
            return None
        matcher = self._matcher.deep_copy()
        return GrammarState(self._rules, matcher) if matcher.consume_token(token) else None

    def forced(self) -> int | None:
        """The only token that may come next, unless it is an end of text."""
        if self.done:
            return None
        ahead: list[int] = self._matcher.compute_ff_tokens()
        if ahead:
            return ahead[0]
        allowed = np.flatnonzero(self.allowed())
        return int(allowed[0]) if len(allowed) == 1 and allowed[0] not in self._rules.ends else None


# --------------------------------------------------------------------------------------- compiling
class GrammarCache:
    """The compiled grammars used last with one tokenizer."""

    def __init__(self, tokenizer: Tokenizer, vocab: int) -> None:
        self.tokenizer = llguidance_tokenizer(tokenizer, vocab)
        self.vocab = vocab
        self._lock = threading.Lock()
        self._cached: OrderedDict[Grammar, CompiledGrammar] = OrderedDict()

    def get(self, grammar: Grammar) -> CompiledGrammar:
        """The compiled grammar, from the cache or made now."""
        with self._lock:
            if (found := self._cached.get(grammar)) is not None:
                self._cached.move_to_end(grammar)
                return found
        source = llguidance_source(grammar)
        COMPILER.check(source)
        made = CompiledGrammar(self.tokenizer, source, self.vocab)
        with self._lock:
            self._cached[grammar] = made
            while len(self._cached) > CACHED:
                self._cached.popitem(last=False)
        return made


def compiled(grammar: Grammar, tokenizer: Tokenizer, vocab: int) -> CompiledGrammar:
    """The grammar compiled for this tokenizer; a bad, slow or huge one is refused."""
    return prepare(tokenizer, vocab).get(grammar)


def prepare(tokenizer: Tokenizer, vocab: int) -> GrammarCache:
    """The grammar cache of a tokenizer; making it takes a second or more."""
    found = tokenizer.cache.get("grammars")
    if not isinstance(found, GrammarCache) or found.vocab != vocab:
        found = tokenizer.cache["grammars"] = GrammarCache(tokenizer, vocab)
    return found


def llguidance_tokenizer(tokenizer: Tokenizer, vocab: int) -> Any:
    """The tokenizer in llguidance's form."""
    with needed_by("a grammar"):
        from llguidance import LLTokenizer, TokenizerWrapper
    if not tokenizer.eos:
        raise SapwoodError(
            "this model names no token that ends its text, which a grammar needs; use another model"
        )
    fast: Any = tokenizer.tokenizer
    source: Any = (
        fast.to_str() if hasattr(fast, "to_str") else TokenizerWrapper(TokenPieces(tokenizer))
    )
    try:
        return LLTokenizer(
            source, n_vocab=max(vocab, tokenizer.size), eos_token=list(tokenizer.eos)
        )
    except ValueError as error:
        raise SapwoodError(
            f"llguidance cannot read this model's tokenizer ({error}); use another model"
        ) from error


class TokenPieces:
    """Bytes of every token, for llguidance, of a tokenizer without a tokenizer.json."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        inner: Any = tokenizer.tokenizer
        self._encode = inner.encode
        self.bos_token_id = tokenizer.bos
        self.eos_token_id = tokenizer.eos[0]
        self.tokens = [inner.piece(token, True) for token in range(tokenizer.size)]
        self.special_token_ids = list(tokenizer.special_tokens().values())

    def __call__(self, text: bytes) -> list[int]:
        """Tokens of a text."""
        found: list[int] = self._encode(
            text.decode("utf-8", "replace"), add_special_tokens=False
        ).ids
        return found


def llguidance_source(grammar: Grammar) -> str:
    """The grammar in llguidance's own notation."""
    from llguidance import LLMatcher

    if grammar.kind == "regex":
        return LLMatcher.grammar_from_regex(grammar.source)
    if grammar.kind == "lark":
        return LLMatcher.grammar_from_lark(grammar.source)
    try:
        return LLMatcher.grammar_from_json_schema(grammar.source, overrides=STYLE)
    except ValueError as error:  # such as a number beyond the range of a float
        raise SapwoodError(f"the JSON schema cannot be used: {error}") from error


def limits() -> Any:
    """Limits of llguidance on a grammar, while compiling and at each step."""
    from llguidance import LLParserLimits

    return LLParserLimits(verbose_errors=False)


def fault(matcher: Any) -> str:
    """The error of a matcher, on one line."""
    return " ".join(str(matcher.get_error()).split())[:400] or "no reason is given"

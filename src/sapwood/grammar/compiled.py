"""Masks over a model's tokens, by llguidance: a matcher per state, copied for every step (4 microseconds)."""

import threading
from collections import OrderedDict
from typing import Any

import numpy as np

from sapwood.arrays import BoolArray
from sapwood.errors import SapwoodError
from sapwood.grammar.source import Grammar
from sapwood.grammar.trial import TRIAL
from sapwood.text import Text

KEPT = 128  # compiled grammars that a tokenizer remembers
STYLE: Any = {  # JSON on one line: models write it so, most of its tokens are forced, and blanks cannot go on for ever
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
}


class Compiled:
    """A grammar over the tokens of one model."""

    def __init__(self, tokenizer: Any, source: str, vocab: int) -> None:
        from llguidance import LLMatcher

        self.vocab = vocab
        self.ends = frozenset[int](tokenizer.eos_tokens)
        self._words = np.zeros((tokenizer.vocab_size + 31) // 32, np.int32)  # room for one mask, a bit per token
        self._first = LLMatcher(tokenizer, source, log_level=0, limits=limits())
        if self._first.is_error():
            raise SapwoodError(f"the grammar cannot be used: {fault(self._first)}")
        if not self.begin().allowed().any():
            raise SapwoodError("the grammar allows no text at all; look for a rule that needs itself")

    def begin(self) -> "Place":
        """The place before the first token."""
        return Place(self, self._first.deep_copy())

    def mask(self, matcher: Any) -> BoolArray:
        """The tokens that may come next, [vocab]."""
        words = self._words.copy()
        matcher.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)
        if matcher.is_error():
            raise SapwoodError(f"the grammar grew too large at this place ({fault(matcher)}); make it simpler")
        bits = np.unpackbits(words.view(np.uint8), bitorder="little")[: self.vocab]
        return np.pad(bits, (0, self.vocab - len(bits))).view(np.bool_)


class Place:
    """A state of a compiled grammar."""

    __slots__ = ("_allowed", "_matcher", "_rules")

    def __init__(self, rules: Compiled, matcher: Any) -> None:
        self._rules, self._matcher = rules, matcher
        self._allowed: BoolArray | None = None

    @property
    def done(self) -> bool:
        """True where nothing but the end may follow."""
        return bool(self._matcher.is_stopped())

    def allowed(self) -> BoolArray:
        """The tokens that may come next, computed when first asked for."""
        if self._allowed is None:
            self._allowed = self._rules.mask(self._matcher)
        return self._allowed

    def after(self, token: int) -> "Place | None":
        """The place after one more token; None where it is forbidden."""
        if self.done:
            return None
        matcher = self._matcher.deep_copy()
        return Place(self._rules, matcher) if matcher.consume_token(token) else None

    def forced(self) -> int | None:
        """The only token that may come next, other than an end of text."""
        if self.done:
            return None
        ahead: list[int] = self._matcher.compute_ff_tokens()
        if ahead:
            return ahead[0]
        allowed = np.flatnonzero(self.allowed())
        return int(allowed[0]) if len(allowed) == 1 and allowed[0] not in self._rules.ends else None


# --------------------------------------------------------------------------------------- compiling
class Shelf:
    """What a tokenizer keeps for its grammars: its tokens as llguidance wants them, and the grammars used last."""

    def __init__(self, text: Text, vocab: int) -> None:
        self.tokenizer, self.vocab = lexicon(text, vocab), vocab
        self._lock = threading.Lock()
        self._kept: OrderedDict[Grammar, Compiled] = OrderedDict()

    def get(self, grammar: Grammar) -> Compiled:
        """The compiled grammar, from memory where it is there."""
        with self._lock:
            if (found := self._kept.get(grammar)) is not None:
                self._kept.move_to_end(grammar)
                return found
        source = spelled(grammar)
        TRIAL.check(source)
        made = Compiled(self.tokenizer, source, self.vocab)
        with self._lock:
            self._kept[grammar] = made
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        return made


def compiled(grammar: Grammar, text: Text, vocab: int) -> Compiled:
    """The grammar over this model's tokens; a bad, slow or huge one is refused."""
    return prepare(text, vocab).get(grammar)


def prepare(text: Text, vocab: int) -> Shelf:
    """Make ready for grammars over these tokens, which takes a second or more the first time."""
    found = text.memory.get("grammars")
    if not isinstance(found, Shelf) or found.vocab != vocab:
        found = text.memory["grammars"] = Shelf(text, vocab)
    return found


def lexicon(text: Text, vocab: int) -> Any:
    """The model's tokens as llguidance wants them."""
    try:
        from llguidance import LLTokenizer, TokenizerWrapper
    except ImportError as error:
        raise SapwoodError("grammars need llguidance; install it, or sapwood[serve]") from error
    if not text.eos:
        raise SapwoodError("this model names no token that ends its text, which a grammar needs; use another model")
    whole = hasattr(text.tokenizer, "to_str")
    source: Any = text.tokenizer.to_str() if whole else TokenizerWrapper(Pieces(text))
    try:
        return LLTokenizer(source, n_vocab=max(vocab, text.size), eos_token=list(text.eos))
    except ValueError as error:
        raise SapwoodError(f"llguidance cannot read this model's tokenizer ({error}); use another model") from error


class Pieces:
    """A tokenizer that is no file, token by token, as llguidance wants it."""

    def __init__(self, text: Text) -> None:
        tokenizer: Any = text.tokenizer
        self._encode = tokenizer.encode
        self.bos_token_id, self.eos_token_id = text.bos, text.eos[0]
        self.tokens = [tokenizer.piece(token, True) for token in range(text.size)]
        self.special_token_ids = list(text.special_words().values())

    def __call__(self, text: bytes) -> list[int]:
        """Tokens of a text."""
        found: list[int] = self._encode(text.decode("utf-8", "replace"), add_special_tokens=False).ids
        return found


def spelled(grammar: Grammar) -> str:
    """The grammar in llguidance's own form."""
    from llguidance import LLMatcher

    if grammar.kind == "regex":
        return LLMatcher.grammar_from_regex(grammar.source)
    if grammar.kind == "lark":
        return LLMatcher.grammar_from_lark(grammar.source)
    return LLMatcher.grammar_from_json_schema(grammar.source, overrides=STYLE)


def limits() -> Any:
    """What a grammar may use up, in its making and at each step."""
    from llguidance import LLParserLimits

    return LLParserLimits(verbose_errors=False)


def fault(matcher: Any) -> str:
    """What a matcher says is wrong, on one line."""
    return " ".join(str(matcher.get_error()).split())[:400] or "no reason is given"

"""Compiling grammars: hostile ones end in one sentence and in time, and nobody else notices."""

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from sapwood import LLM
from sapwood.backends.toy import ToyBackend
from sapwood.core.sampling import Sampling
from sapwood.engine.input_processor import check_options, read_sampling
from sapwood.errors import SapwoodError
from sapwood.structured_output import Grammar, json_object, json_schema, lark, regex
from sapwood.structured_output.compiled import CACHED, CompiledGrammar, compiled, prepare
from sapwood.structured_output.grammar import MOST_BYTES, MOST_CHOICES, MOST_DEPTH, MOST_NODES
from sapwood.structured_output.grammar_matcher import GrammarMatcher, PathEnd
from sapwood.structured_output.sandboxed_compile import COMPILER, CompileProcess
from sapwood.tokenizer.tokenizer import Tokenizer
from tests.helpers import byte_tokenizer, letter_grammar

TEXT = byte_tokenizer.text()
SLOWEST = 20.0  # seconds of one grammar on a busy machine, the start of the process included


def make(grammar: Grammar) -> CompiledGrammar:
    return compiled(grammar, TEXT, byte_tokenizer.SIZE)


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    return schema


def many(count: int) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {f"p{place}": {"type": "string"} for place in range(count)},
    }


# ---------------------------------------------------------------------------------- refused by size
@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: json_schema(nested(17)), f"nested more than {MOST_DEPTH} deep"),
        (lambda: json_schema(nested(30_000)), f"nested more than {MOST_DEPTH} deep"),
        (lambda: json_schema(many(MOST_NODES)), f"more than {MOST_NODES} parts"),
        (lambda: json_schema({"enum": ["x"] * (MOST_CHOICES + 1)}), f"{MOST_CHOICES + 1} choices"),
        (lambda: json_schema({"enum": ["x" * 20] * MOST_CHOICES}), "bytes, but may have"),
        (lambda: json_schema({"minLength": 10**6}), "minLength=1000000"),
        (lambda: json_schema({"items": {"maxItems": 1e9}}), "maxItems=1000000000.0"),
        (lambda: json_schema({"const": float("nan")}), "number that JSON cannot write"),
        (lambda: json_schema([1]), "must be an object, not list"),
        (lambda: json_schema("{}"), "must be an object, not str"),
        (lambda: regex("a" * (MOST_BYTES["regex"] + 1)), "4097 bytes, but may have 4096"),
        (lambda: lark("é" * MOST_BYTES["lark"]), "bytes, but may have 65536"),
    ],
)
def test_too_large_is_refused_at_once(build: Any, message: str) -> None:
    start = time.thread_time()  # which a busy machine does not lengthen
    with pytest.raises(SapwoodError, match=message):
        build()
    assert time.thread_time() - start < 2


# ------------------------------------------------------------------------------- hostile, but small
HOSTILE: dict[str, tuple[Grammar, str]] = {
    "powers": (regex("(a{1,1000}){1,1000}"), ""),
    "stars": (regex("(a|a|a|a)*(b|b)*" * 40), ""),
    "backwards": (regex("[01]*1[01]{25}"), ""),
    "open bracket": (regex("("), "unclosed group"),
    "look-around": (regex("(?=a)b"), "look-around"),
    "parentheses": (regex("(" * 2000 + "a" + ")" * 2000), "."),
    "enum": (json_schema({"enum": [f"v{place}" for place in range(4000)]}), ""),
    "optional": (json_schema(many(600)), ""),
    "itself": (json_schema({"$ref": "#"}), "no text at all|cannot be used|too large"),
    "cycle": (
        json_schema(
            {
                "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}, {"type": "null"}]}},
                "$ref": "#/$defs/a",
            }
        ),
        "",
    ),
    "remote": (json_schema({"$ref": "http://127.0.0.1:1/x.json"}), "cannot be used"),
    "kind": (json_schema({"type": "nothing"}), "Invalid type"),
    "pattern": (json_schema({"type": "string", "pattern": "^(a+)+$"}), ""),
    "lengths": (json_schema({"type": "string", "minLength": 99_999}), ""),
    "items": (json_schema({"type": "array", "items": {"type": "integer"}, "maxItems": 99_999}), ""),
    "ambiguous": (lark('start: start start | /a/ | ""'), ""),
    "nothing": (lark("begin: /a/"), "cannot be used"),
    "many of": (
        json_schema({"allOf": [{"properties": {f"p{i}": {"type": "string"}}} for i in range(200)]}),
        "",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_grammars_end_in_time(name: str) -> None:
    grammar, message = HOSTILE[name]
    start = time.monotonic()
    if message:
        with pytest.raises(SapwoodError, match=message) as caught:
            make(grammar)
        assert "\n" not in str(caught.value)
    else:
        state: Any = make(grammar).begin()
        for _ in range(5):  # the first masks are part of the price
            state = state.after(int(np.flatnonzero(state.allowed())[0])) or state
    assert time.monotonic() - start < SLOWEST


def test_the_trial_is_killed_when_time_is_up_and_comes_back() -> None:
    trial = CompileProcess(seconds=0.0)
    words = " | ".join(f"/{number}[a-z]{{1,20}}/" for number in range(500))
    try:
        with pytest.raises(SapwoodError, match=r"within 0 s; make it simpler"):
            trial.check(f"start: {words}")  # not ready by the time its answer is looked for
        trial.seconds = 30.0
        trial.check("start: /a/")
    finally:
        trial.close()


def test_the_trial_survives_its_own_death() -> None:
    trial = CompileProcess(seconds=30.0)
    try:
        trial.check("start: /a/")
        assert trial._process is not None
        trial._process.kill()
        trial._process.wait()
        trial.check("start: /b/")
        with pytest.raises(SapwoodError, match="cannot be used"):
            trial.check("start: /(/")
    finally:
        trial.close()


def test_many_threads_share_one_trial() -> None:
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda place: make(regex(f"thread{place % 4}")), range(16)))
    assert all(rules.begin().allowed().any() for rules in made)
    assert COMPILER._process is not None


# --------------------------------------------------------------------------------------- kept
def test_a_grammar_is_compiled_once() -> None:
    assert make(regex("once")) is make(regex("once"))
    assert make(regex("once")) is not make(regex("twice"))
    assert make(json_object()) is make(json_schema({"type": "object"}))


def test_the_shelf_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    text = byte_tokenizer.text()
    monkeypatch.setattr(COMPILER, "check", lambda source: None)
    first = compiled(regex("0"), text, byte_tokenizer.SIZE)
    for place in range(1, CACHED + 1):
        compiled(regex(str(place)), text, byte_tokenizer.SIZE)
        compiled(regex("1"), text, byte_tokenizer.SIZE)
    assert len(prepare(text, byte_tokenizer.SIZE)._cached) == CACHED
    assert compiled(regex("0"), text, byte_tokenizer.SIZE) is not first


def test_two_requests_under_one_grammar_do_not_meet() -> None:
    rules = letter_grammar.pattern("ab|ba")
    one = GrammarMatcher(rules)
    other = GrammarMatcher(rules)
    one.commit([0])
    assert one.state(()).allowed().tolist() == [False, True, False, False]  # type: ignore[union-attr]
    assert other.state(()).allowed().tolist() == [True, True, False, False]  # type: ignore[union-attr]


def test_states_may_be_used_from_another_thread() -> None:
    rules = make(json_object())
    found = list[bool]()
    worker = threading.Thread(target=lambda: found.append(bool(rules.begin().allowed().any())))
    worker.start()
    worker.join()
    assert found == [True]


# ------------------------------------------------------------------------------------- along a path
def test_fates() -> None:
    guide = GrammarMatcher(letter_grammar.pattern("ab?"))
    assert guide.path_state((0,)) not in set(PathEnd)
    assert guide.path_state((0, letter_grammar.END)) is PathEnd.ENDED
    assert guide.path_state((letter_grammar.END,)) is PathEnd.BROKEN
    assert guide.path_state((0, 0)) is PathEnd.BROKEN
    assert guide.path_state((0, letter_grammar.END, 0)) is PathEnd.BROKEN
    assert guide.allows((0, letter_grammar.END))
    assert not guide.allows((0, letter_grammar.END, 1))
    assert guide.state((0, 0)) is None
    guide.commit([0, 1])
    state = guide.state(())
    assert state is not None
    assert state.done
    assert state.allowed().tolist() == [False, False, False, True]
    assert state.forced() is None


def test_a_long_output_is_committed_at_once() -> None:
    guide = GrammarMatcher(letter_grammar.pattern("a*b"))
    guide.commit([0] * 5000)
    assert guide.state(()) is not None


def test_a_larger_vocabulary_than_the_tokenizers() -> None:
    rules = compiled(regex("ab"), byte_tokenizer.text(), byte_tokenizer.SIZE + 50)
    allowed = rules.begin().allowed()
    assert allowed.shape == (byte_tokenizer.SIZE + 50,)
    assert allowed.sum() == 1


class Library:
    """A tokenizer as llama.cpp offers it: pieces of bytes, and no file."""

    def __init__(self) -> None:
        self._inner = byte_tokenizer.tokenizer()
        self.encode = self._inner.encode
        self.decode = self._inner.decode
        self.get_vocab_size = self._inner.get_vocab_size
        self.get_added_tokens_decoder = self._inner.get_added_tokens_decoder

    def piece(self, token: int, special: bool) -> bytes:
        shown = self._inner.id_to_token(token) or ""
        return shown.encode() if token >= 256 else bytes([BYTES[shown]])


PLAIN = [
    *range(ord("!"), ord("~") + 1),
    *range(ord("¡"), ord("¬") + 1),
    *range(ord("®"), ord("ÿ") + 1),
]
REST = [byte for byte in range(256) if byte not in PLAIN]
# the characters that byte-level vocabularies write for bytes
BYTES = {chr(byte): byte for byte in PLAIN} | {
    chr(256 + place): byte for place, byte in enumerate(REST)
}


def test_a_tokenizer_that_is_no_file() -> None:
    text: Any = Tokenizer(Library(), eos=(byte_tokenizer.EOS,))  # type: ignore[arg-type]
    one, other = (
        compiled(json_object(), each, byte_tokenizer.SIZE).begin()
        for each in (text, byte_tokenizer.text())
    )
    for token in TEXT.encode('{"é": [1, "x"]}', whole=False):
        assert np.array_equal(one.allowed(), other.allowed())

        one = one.after(token)  # type: ignore[assignment]
        other = other.after(token)  # type: ignore[assignment]
    assert one.done
    assert other.done


# --------------------------------------------------------------------------------------- requests
def test_a_request_takes_a_grammar() -> None:
    info = ToyBackend(vocab=byte_tokenizer.SIZE).info
    sampling = read_sampling({"grammar": regex("a+")}, info, TEXT)
    assert isinstance(sampling.grammar, CompiledGrammar)
    assert sampling.touches_logits
    assert read_sampling({"grammar": sampling.grammar}, info, TEXT).grammar is sampling.grammar
    assert read_sampling({}, info, TEXT).grammar is None
    with pytest.raises(SapwoodError, match=r"must be made by json_schema, regex or lark"):
        check_options({"grammar": "a+"})
    with pytest.raises(SapwoodError, match="needs a tokenizer"):
        read_sampling({"grammar": regex("a+")}, info, None)
    with pytest.raises(SapwoodError, match="no token that ends"):
        read_sampling({"grammar": regex("a+")}, info, Tokenizer(byte_tokenizer.tokenizer()))


def test_an_answer_ends_where_its_grammar_does() -> None:
    llm = LLM(ToyBackend("ends", vocab=byte_tokenizer.SIZE), "auto", text=byte_tokenizer.text())
    done = llm.generate("Say:", raw=True, grammar=regex("yes|no"), max_tokens=50, min_tokens=20)
    assert done.text in ("yes", "no")
    assert done.finish == "stop"
    assert (
        byte_tokenizer.EOS not in done.tokens
    )  # nothing can follow: no pass is spent on saying so
    cut = llm.generate("Say:", raw=True, grammar=regex("[a-z]{40}"), max_tokens=10)
    assert (cut.finish, len(cut.tokens)) == ("length", 10)


def test_bans_that_leave_nothing_are_told() -> None:
    llm = LLM(ToyBackend("bans", vocab=byte_tokenizer.SIZE), "plain", text=byte_tokenizer.text())
    with pytest.raises(SapwoodError, match="every token is banned here"):
        llm.generate("Say:", raw=True, grammar=regex("a"), banned=TEXT.encode("a", whole=False))


def test_json_is_on_one_line() -> None:
    llm = LLM(ToyBackend("line", vocab=byte_tokenizer.SIZE), "auto", text=byte_tokenizer.text())
    schema = {
        "type": "object",
        "properties": {"a": {"const": 1}, "b": {"const": [2, 3]}},
        "required": ["a", "b"],
    }
    done = llm.generate(
        "Say:",
        raw=True,
        grammar=json_schema({**schema, "additionalProperties": False}),
        max_tokens=99,
    )
    assert done.text == json.dumps({"a": 1, "b": [2, 3]})
    assert done.stats.passes <= 4  # all of it is forced


def test_sampling_without_a_grammar_has_no_guide() -> None:
    assert not Sampling().touches_logits

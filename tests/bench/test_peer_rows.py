"""Rows of other engines: their pace, and how far their text agrees with plain decoding's."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapwood.bench.measure import BenchRun
from sapwood.bench.peer_rows import agreement, bare, missing, peer_rows, shared
from sapwood.bench.report import ReportOptions
from sapwood.bench.rows import ALL
from sapwood.bench.suites import BenchPrompt
from sapwood.bench.sweep import SweepPoint
from tests.helpers import byte_tokenizer
from tests.helpers.bench_records import run

TEXT = byte_tokenizer.text()
END = byte_tokenizer.EOS


def said(tokens: list[int], seconds: float = 1.0, **more: Any) -> BenchRun:
    return run(tokens, seconds, **more)


def prompts(*categories: str) -> list[BenchPrompt]:
    return [BenchPrompt(f"p{at}", word, word, "x") for at, word in enumerate(categories)]


# -------------------------------------------------------------------------------------- agreement
@given(st.lists(st.integers(0, 2), max_size=8), st.lists(st.integers(0, 2), max_size=8))
def test_the_shared_beginning_as_a_share_of_the_longer_one(
    one: list[int], other: list[int]
) -> None:
    common = 0
    for left, right in zip(one, other, strict=False):
        if left != right:
            break
        common += 1
    longest = max(len(one), len(other))
    assert shared(one, other) == (common / longest if longest else 1.0)
    assert shared(one, other) == shared(other, one)
    assert (shared(one, other) == 1.0) is (one == other)


def test_the_token_that_ends_a_text_does_not_count() -> None:
    assert bare([1, 2, END], frozenset({END})) == [1, 2]
    assert bare([END, 2], frozenset({END})) == [END, 2]
    assert bare([], frozenset({END})) == []
    assert agreement(said([1, 2]), said([1, 2, END]), TEXT) == 1.0
    assert agreement(said([1, 2, END]), said([1, 2, 3]), TEXT) == pytest.approx(2 / 3)
    assert agreement(said([1, 2, END]), said([1, 2]), None) == pytest.approx(2 / 3)


def test_words_are_compared_where_a_peer_gives_no_tokens() -> None:
    plain = said(TEXT.encode("one two", whole=False))
    assert agreement(BenchRun(said=2, text=" one two\n"), plain, TEXT) == 1.0
    assert agreement(BenchRun(said=2, text="one tXX"), plain, TEXT) == pytest.approx(5 / 7)
    assert agreement(BenchRun(said=0, text=None), plain, TEXT) == 0.0
    assert agreement(BenchRun(said=0, text=""), plain, None) == 1.0


# ------------------------------------------------------------------------------------------- rows
def test_a_peer_has_a_row_for_each_category() -> None:
    runs = {
        "plain": [said([1, 2, 3, 4], 4.0), said([5, 6], 2.0), said([7, 8], 2.0)],
        "hf": [
            said([1, 2, 3, 4], 1.0, timed=3, prefill=0.5, memory=7),
            said([5, 9], 0.5, timed=1, prefill=0.25, memory=9),
            said([7, 8], 0.5, timed=1, prefill=0.25),
        ],
    }
    rows = {
        one.category: one
        for one in peer_rows("hf", "float32; hf 5", prompts("a", "b", "a"), runs, TEXT)
    }
    assert list(rows) == ["a", "b", ALL]
    whole = rows[ALL]
    assert (whole.recipe, whole.peer, whole.weights) == ("hf", True, "float32; hf 5")
    assert (whole.prompts, whole.turns, whole.tokens, whole.seconds) == (3, 3, 8, 2.0)
    assert whole.tokens_per_second == pytest.approx(5 / 2)  # the first of each is not timed
    assert whole.speedup == pytest.approx((8 / 8) / (2 / 5))
    assert whole.prefill_seconds == 1.0
    assert whole.agreement == 2
    assert whole.agreement_share == pytest.approx(2.5 / 3)
    assert (rows["b"].agreement, rows["b"].agreement_share) == (0, 0.5)
    assert (whole.peak_memory, whole.joules) == (9, None)
    assert (whole.tokens_per_pass, whole.identical, whole.divergences) == (None, None, [])


def test_a_conversation_agrees_where_all_of_its_turns_do() -> None:
    runs = {
        "plain": [said([1]), said([2]), said([3]), said([4])],
        "hf": [said([1]), said([9]), said([3]), said([4])],
    }
    view = ReportOptions(SweepPoint(context=64), talks=["x", "x", "y", "y"])
    [_, whole] = peer_rows("hf", "", prompts("a", "a", "a", "a"), runs, None, view)
    assert (whole.prompts, whole.turns, whole.agreement) == (2, 4, 1)
    assert whole.agreement_share == 0.75
    assert whole.context == 64


def test_a_peer_that_tells_no_seconds_has_no_pace() -> None:
    runs = {"plain": [said([1, 2])], "hf": [BenchRun(tokens=[1, 2], timed=0)]}
    whole = peer_rows("hf", "", prompts("a"), runs, None)[-1]
    assert (whole.seconds, whole.tokens_per_second, whole.speedup) == (0, None, None)
    assert whole.speedup_low is None
    assert whole.agreement == 1


def test_a_peer_that_did_not_run_has_a_row_with_the_reason() -> None:
    made = missing("vllm", "not installed; pip install it", ReportOptions(SweepPoint(batch=2)))
    assert (made.recipe, made.category, made.prompts, made.peer) == ("vllm", ALL, 0, True)
    assert made.skipped == "not installed; pip install it"
    assert (made.batch, made.tokens, made.speedup, made.divergences) == (2, None, None, [])

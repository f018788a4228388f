"""Counts of n-grams are those of brute force, and the oldest are forgotten."""

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapwood.drafters.lookup.ngram_counts import NgramCounts
from tests.helpers.lookup_drafters import texts


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAPWOOD_CACHE", str(tmp_path / "cache"))


def in_pieces(counts: NgramCounts, text: list[int], lead: int = 99) -> NgramCounts:
    """The table after rounds of three tokens; a short lead forgets what stands before a round."""
    for cut in range(0, len(text), 3):
        counts.learn(text[:cut][-lead:] if lead else [], text[cut : cut + 3])
    return counts


@given(texts, st.integers(1, 4))
def test_counts_are_those_of_brute_force(text: list[int], longest: int) -> None:
    whole = NgramCounts(longest)
    whole.learn([], text)
    assert in_pieces(NgramCounts(longest), text).table == whole.table
    if len(text) > 3:
        assert in_pieces(NgramCounts(longest), text, lead=0).table != whole.table
    for size in range(1, longest + 1):
        for end in range(size, len(text)):
            context = tuple(text[end - size : end])
            seen = Counter(
                text[i + size]
                for i in range(len(text) - size)
                if tuple(text[i : i + size]) == context
            )
            shares = whole.after(context)
            assert dict(shares) == {token: count / seen.total() for token, count in seen.items()}
            assert [share for _, share in shares] == sorted(
                (share for _, share in shares), reverse=True
            )


def test_counts_forget_the_oldest() -> None:
    counts = NgramCounts(1, 10)
    for token in range(100):
        counts.learn([token], [token + 1])
        assert len(counts.table) <= 10
    assert counts.after((99,)) == [(100, 1.0)]
    assert not counts.after((50,))

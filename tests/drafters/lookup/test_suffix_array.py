"""Suffix arrays: sorted places, every occurrence, the longest end that goes on."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapwood.drafters.lookup.suffix_array import DEPTH, SuffixArray
from sapwood.drafters.lookup.suffix_automaton import SuffixAutomaton
from tests.helpers.lookup_drafters import texts


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAPWOOD_CACHE", str(tmp_path / "cache"))


@given(texts)
def test_places_are_sorted_by_what_is_written_there(text: list[int]) -> None:
    order = SuffixArray.of(text).order.tolist()
    assert order == sorted(range(len(text)), key=lambda place: text[place : place + DEPTH])


@given(texts, st.lists(st.integers(0, 3), min_size=1, max_size=6))
def test_every_occurrence_is_found(text: list[int], context: list[int]) -> None:
    low, high = (made := SuffixArray.of(text)).find(context)
    found = sorted(made.order[low:high].tolist())
    assert found == [
        place for place in range(len(text)) if text[place : place + len(context)] == context
    ]


@given(texts, texts, st.integers(1, 4), st.integers(1, 12))
def test_the_longest_end_that_goes_on_is_found(
    text: list[int], read: list[int], least: int, most: int
) -> None:
    made = SuffixArray.of(text)
    size, low, high = made.longest(read, most, least)
    sizes = range(least, min(most, len(read)) + 1)
    ends = [
        size
        for size in sizes
        if any(text[i : i + size] == read[-size:] for i in range(len(text) - size))
    ]
    assert size == max(ends, default=0)
    assert (low < high) == bool(ends)
    assert all(
        text[place : place + size] == read[-size:]
        for place in made.order[low:high].tolist()
        if size
    )


def test_repetition_does_not_matter() -> None:
    made = SuffixArray.of([7] * 300)
    low, high = made.find([7] * DEPTH)
    assert sorted(made.order[low:high].tolist()) == list(range(300 - DEPTH + 1))


@given(texts)
def test_automaton_and_array_count_the_same(text: list[int]) -> None:
    automaton = SuffixAutomaton()
    array = SuffixArray.of(text)
    automaton.learn(text)
    for start in range(len(text)):
        state = 0
        for end in range(start, min(len(text), start + 8)):
            state = automaton.edges[state][text[end]]
            low, high = array.find(text[start : end + 1])
            assert automaton.counts[state] == high - low

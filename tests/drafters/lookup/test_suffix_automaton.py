"""The automaton against brute force on short texts."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from sapwood.drafters.lookup.suffix_automaton import HOPS, START, SuffixAutomaton

documents = st.lists(st.lists(st.integers(0, 2), max_size=14), min_size=1, max_size=4)


def occurrences(texts: list[list[int]], string: list[int]) -> int:
    size = len(string)
    return sum(text[i : i + size] == string for text in texts for i in range(len(text) - size + 1))


def continuations(texts: list[list[int]], string: list[int]) -> Counter[int]:
    size = len(string)
    return Counter(
        text[i + size]
        for text in texts
        for i in range(len(text) - size)
        if text[i : i + size] == string
    )


def build(texts: list[list[int]]) -> SuffixAutomaton:
    automaton = SuffixAutomaton()
    for text in texts:
        automaton.learn(text)
    return automaton


@given(documents)
def test_every_string_is_found_with_its_count(texts: list[list[int]]) -> None:
    automaton = build(texts)
    for text in texts:
        for start in range(len(text)):
            state = START
            for end in range(start, len(text)):
                state = automaton.edges[state][text[end]]
                assert automaton.counts[state] == occurrences(texts, text[start : end + 1])


@given(documents)
def test_continuations_are_ranked_by_count(texts: list[list[int]]) -> None:
    automaton = build(texts)
    for text in texts:
        for start in range(len(text)):
            state = START
            for end in range(start, len(text)):
                state = automaton.edges[state][text[end]]
                shares = automaton.shares(state)
                truth = continuations(texts, text[start : end + 1])
                assert dict(shares) == {
                    token: count / truth.total() for token, count in truth.items()
                }
                assert [share for _, share in shares] == sorted(
                    (share for _, share in shares), reverse=True
                )


@given(documents, st.lists(st.integers(0, 3), max_size=12))
def test_following_a_text_finds_the_longest_match(texts: list[list[int]], text: list[int]) -> None:
    automaton = build(texts)
    match = (START, 0)
    for end in range(len(text)):
        match = automaton.advance(match, text[end])
        lengths = [
            size
            for size in range(end + 2)
            if not size or occurrences(texts, text[end + 1 - size : end + 1])
        ]
        assert match[1] == max(lengths)
        assert automaton.lengths[automaton.links[match[0]]] < match[1] or match == (START, 0)


@given(st.lists(st.integers(0, 2), min_size=1, max_size=20))
def test_the_end_of_a_text_matches_what_came_before(text: list[int]) -> None:
    automaton = SuffixAutomaton()
    for end, token in enumerate(text, 1):
        automaton.extend([token])
        repeated = [
            size
            for size in range(end)
            if not size or occurrences([text[:end]], text[end - size : end]) > 1
        ]
        assert automaton.match()[1] == max(repeated)


def test_recent_wins_among_equals() -> None:
    automaton = build([[1, 2, 1, 3, 1, 4]])
    assert [token for token, _ in automaton.shares(automaton.edges[START][1])] == [4, 3, 2]
    automaton.learn([1, 3])
    assert automaton.shares(automaton.edges[START][1]) == [(3, 0.5), (4, 0.25), (2, 0.25)]


def test_contexts_shrink_along_the_links() -> None:
    automaton = build([[1, 2, 3, 9, 2, 4]])
    match = (START, 0)
    for token in (1, 2):
        match = automaton.advance(match, token)
    assert list(automaton.contexts(match)) == [(2, [(3, 1.0)]), (1, [(4, 0.5), (3, 0.5)])]


def test_one_repeated_token_stays_cheap() -> None:
    automaton = build([[7] * 5000])
    assert automaton.match()[1] == 4999
    assert automaton.counts[automaton.edges[START][7]] == HOPS
    assert len(automaton.links) == 5001

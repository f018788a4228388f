"""SuffixDecoding: length bound, probability floor, and the draft of best score."""

from collections import Counter
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sapwood.backends.toy import ToyBackend
from sapwood.core.rng import KeyedRng
from sapwood.core.sampling import Sampling
from sapwood.core.tree import Tree
from sapwood.drafters.lookup.suffix_decoding import SuffixDecoding
from sapwood.engine.loop import Engine
from sapwood.errors import SapwoodError
from sapwood.recipes import resolve
from sapwood.testing import law_error
from tests.helpers.lookup_drafters import SETTING, begin, letters, say, strings


def planned(drafter: SuffixDecoding) -> Tree:
    return drafter.plan(KeyedRng(0))


def drafted(text: str, **options: float) -> list[str]:
    drafter = begin(SuffixDecoding(**options), letters(text))  # type: ignore[arg-type]
    return ["".join(chr(97 + token) for token in path) for path in strings(planned(drafter))]


def test_a_draft_is_no_longer_than_its_match() -> None:
    assert drafted("abcdefghxabc") == ["d", "de", "def"]
    assert drafted("abcdefghxbc") == ["d", "de"]
    assert drafted("abcdefghxabc", factor=2.0)[-1] == "defghx"
    assert drafted("abcdefghxabc", factor=0.5) == ["d"]
    assert drafted("abcdefghxabc", offset=2.0)[-1] == "defgh"
    assert drafted("abcdefghxabc", offset=-1.0)[-1] == "de"
    assert drafted("abcdefghxabc", factor=0.0) == []
    assert drafted("abcdefghxabc", depth=5) == ["d", "de"]  # with the match, five tokens


def test_probabilities_are_shares_of_the_counts_down_to_a_floor() -> None:
    # ab occurred four times, the last time at the end: c followed twice, d once
    tree = planned(begin(SuffixDecoding(), letters("abcxabcyabdzab")))
    assert dict(zip(strings(tree), tree.probs[1:].tolist(), strict=True)) == {
        tuple(letters("c")): 0.5,
        tuple(letters("d")): 0.25,
    }
    assert drafted("abcxabcyabdzab", floor=0.3) == ["c"]
    assert drafted("abcxabcyabdzab", floor=0.5) == ["c"]
    assert drafted("abcxabcyabdzab", floor=0.51) == []
    # a path goes on where a tree branches, here along the newer of two
    assert drafted("abcxabcyabdzab", tree=False) == ["c", "cy"]


def test_the_best_score_wins_not_the_longest_match() -> None:
    # after ab: two tokens of a half each. b alone occurred 4 times and was followed by c 3 times
    text = "zbcbcabczab"
    assert drafted(text) == ["c", "cz"]
    assert drafted(text, factor=0.5) == ["c"]
    tree = planned(begin(SuffixDecoding(factor=0.0, offset=1.0), letters(text)))
    assert tree.probs[1] == 0.75  # one token for every match: that of b is the surest


def test_earlier_outputs_win_by_score_and_lose_ties() -> None:
    part = SuffixDecoding()
    first = begin(part, letters("xx"))
    say(first, *letters("abcdefg"))
    first.close()
    later = begin(part, letters("zyabc"), setting=None)
    assert strings(planned(later))[-1] == tuple(letters("def"))
    both = begin(part, letters("abcxyzabc"), setting=None)
    # three tokens for sure beat three of a half each
    assert strings(planned(both))[0] == tuple(letters("d"))
    tie = begin(SuffixDecoding(factor=0.0, offset=1.0), letters("q"))
    say(tie, *letters("abdab"))
    tie.close()
    tied = begin(tie, letters("bcb"), setting=None)
    assert strings(planned(tied)) == [tuple(letters("c"))]


def test_both_halves_of_the_memory_count_together() -> None:
    part = SuffixDecoding(memory=12)
    for text in ("mnoabc", "pqrabd"):
        one = begin(part, letters("x"), setting=SETTING if text[0] == "m" else None)
        say(one, *letters(text))
        one.close()
    assert part.earlier.old.size == part.earlier.young.size == 6
    tree = planned(begin(part, letters("zab"), setting=None))
    assert sorted(strings(tree)) == [tuple(letters("c")), tuple(letters("d"))]
    assert tree.probs[1:].tolist() == [0.5, 0.5]


def slow(text: list[int], floor: float) -> float:
    """The best score, by counting every continuation of every end of the text."""
    strings_of = Counter(
        tuple(text[begin:end])
        for begin in range(len(text))
        for end in range(begin + 1, len(text) + 1)
    )
    best = 0.0
    for matched in range(1, len(text)):
        end = tuple(text[-matched:])
        chances = sorted(
            count / strings_of[end]
            for string, count in strings_of.items()
            if len(string) > matched and string[:matched] == end
        )
        best = max(best, sum(chance for chance in chances[-matched:] if chance >= floor))
    return best


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 2), min_size=1, max_size=14))
def test_the_score_is_that_of_a_slow_search(text: list[int]) -> None:
    tree = planned(begin(SuffixDecoding(), text))
    score = sum(tree.probs[tree.path(node)].prod() for node in range(1, len(tree)))
    assert score == pytest.approx(slow(text, 0.1))


@pytest.mark.parametrize("salt", "ab")
def test_it_is_lossless(salt: str) -> None:
    recipe = resolve("suffix-decoding")
    error = law_error(recipe, ToyBackend(salt), prompt=(0, 1, 2, 0, 1), rounds=2, horizon=2)
    assert error <= 1e-12


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_it_writes_plain_decodings_text(temperature: float) -> None:
    def text(recipe: str) -> list[int]:
        sampling = Sampling(temperature=temperature, max_tokens=60)
        rounds = Engine(ToyBackend(), resolve(recipe)).rounds(
            [0, 1, 2, 0, 1], sampling, KeyedRng(3)
        )
        return list(islice((token for outcome in rounds for token in outcome.tokens), 20))

    assert text("suffix-decoding") == text("plain")


def test_options_have_ranges() -> None:
    for wrong in ({"factor": -1.0}, {"floor": 2.0}, {"depth": 1}, {"memory": -1}):
        with pytest.raises(SapwoodError):
            SuffixDecoding(**wrong)

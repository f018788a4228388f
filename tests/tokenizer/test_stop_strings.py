"""Stop strings of any length are held back exactly as long as they may still be completed."""

import pytest

from sapwood.tokenizer.detokenizer import StopStrings, overlap

LONG = "</assistant_turn>"


@pytest.mark.parametrize("size", range(1, len(LONG)))
def test_every_beginning_of_a_long_stop_string_is_held_back(size: int) -> None:
    found = StopStrings([LONG])
    assert found.push("text" + LONG[:size]) == "text"
    assert found.push(LONG[size:] + "more") == ""
    assert found.hit == LONG
    assert found.flush() == ""


@pytest.mark.parametrize("size", range(1, len(LONG)))
def test_a_beginning_that_breaks_off_comes_out_whole(size: int) -> None:
    found = StopStrings([LONG])
    assert found.push(LONG[:size]) == ""
    assert found.push("!") == LONG[:size] + "!"
    assert found.hit is None


def test_letter_by_letter_nothing_of_a_long_stop_string_is_shown() -> None:
    found = StopStrings(["never", LONG])
    shown = [found.push(letter) for letter in "ab" + LONG]
    assert shown == ["a", "b"] + [""] * len(LONG)
    assert found.hit == LONG


def test_the_end_of_the_text_releases_what_was_held_back_once() -> None:
    found = StopStrings([LONG])
    found.push("a" + LONG[:9])
    assert (found.flush(), found.flush()) == (LONG[:9], "")
    assert found.push("b") == "b"


def test_the_longest_of_several_beginnings_is_held_back() -> None:
    found = StopStrings(["abcdefgh", "efgx"])
    assert found.push("-abcdefg") == "-"
    assert found.push("x!") == "abcd"
    assert found.hit == "efgx"


def test_of_stops_completed_together_the_one_that_began_first_counts() -> None:
    found = StopStrings(["cde", "bcde"])
    assert found.push("abcdef") == "a"
    assert found.hit == "bcde"


@pytest.mark.parametrize(
    ("text", "stop", "size"),
    [
        ("abcde", "abcde", 0),  # all of it is a hit, not a beginning
        ("xabcd", "abcde", 4),
        ("abcdabc", "abcdabcx", 7),
        ("aaaa", "aaaaaa", 4),
        ("abab", "ababc", 4),
        ("b", "abc", 0),
        ("", "abc", 0),
    ],
)
def test_overlap_is_the_longest_end_that_begins_the_stop(text: str, stop: str, size: int) -> None:
    assert overlap(text, stop) == size

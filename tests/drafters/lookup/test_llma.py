"""LLMA copies from the prompt and from references when the output triggers it."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from sapwood.core.rng import Rng
from sapwood.drafters.lookup.llma import CopyPosition, Llma
from tests.helpers.lookup_drafters import answer, begin, letters, say, spelled, write


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAPWOOD_CACHE", str(tmp_path / "cache"))


def check_the_trigger(part: Llma) -> None:
    drafter = begin(part, [1, 2, 3, 4, 1, 2])
    assert not answer(
        drafter, 2
    )  # the prompt's own last tokens stand in the prompt, and do not count
    say(drafter, 9)
    assert not answer(drafter, 9)
    say(drafter, 3)
    assert spelled(drafter, 3) == [4, 1, 2]


@dataclass
class Eager(Llma):
    """A mutant that the prompt triggers."""

    def start(self, rng: Rng) -> CopyPosition:
        return self._trigger(tuple(self.text_[-self.longest :]))


def test_llma_is_triggered_by_the_output_alone() -> None:
    check_the_trigger(Llma())
    with pytest.raises(AssertionError):
        check_the_trigger(Eager())


def test_llma_does_not_copy_from_the_output() -> None:
    drafter = begin(Llma(), [1, 2])
    say(drafter, 7, 8, 7)
    assert not answer(drafter, 7)


def test_llma_takes_the_longest_match_then_the_first_place() -> None:
    prompt = [3, 20, 3, 21, 5, 3, 22, 4, 5, 3, 23]
    drafter = begin(Llma(), prompt)
    say(drafter, 9, 3)
    assert spelled(drafter, 3, 1) == [20]
    say(drafter, 5, 3)
    assert spelled(drafter, 3, 1) == [22]
    say(drafter, 4, 5, 3)
    assert spelled(drafter, 3, 1) == [23]
    short = begin(Llma(longest=1), prompt)
    say(short, 4, 5, 3)
    assert spelled(short, 3, 1) == [20]


def test_llma_needs_as_many_tokens_as_the_trigger_says() -> None:
    drafter = begin(Llma(trigger=2), [1, 2, 3, 4])
    say(drafter, 2)
    assert not answer(drafter, 2)
    say(drafter, 1, 2)
    assert list(answer(drafter, 2)) == [3]


def test_llma_copies_so_many_tokens_and_stops() -> None:
    drafter = begin(Llma(copy=3), list(range(20)))
    say(drafter, 5)
    assert spelled(drafter, 5) == [6, 7, 8]
    assert list(answer(drafter, 5, 6)) == [7]
    assert list(answer(drafter, 5, 15)) == [16]  # another drafter's node triggers by itself


def test_llma_copies_from_references(tmp_path: Path) -> None:
    part = Llma(references=write(tmp_path, "abcd efgh"))
    drafter = begin(part, [40, 41])
    say(drafter, 2)
    assert spelled(drafter, 2) == letters("defgh")

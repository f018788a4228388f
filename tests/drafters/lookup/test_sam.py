"""SAM: copies along long matches, and another drafter where nothing matches."""

from pathlib import Path

import pytest

from sapwood.drafters.lookup.ngram import Ngram
from sapwood.drafters.lookup.sam import Sam
from tests.helpers.lookup_drafters import Rising, answer, begin, letters, spelled, write


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAPWOOD_CACHE", str(tmp_path / "cache"))


def test_sam_copies_along_a_long_match_alone() -> None:
    text = [*range(10), 50, 0, 1, 2, 3]
    assert spelled(begin(Sam(otherwise=Rising()), text), 3) != [
        4,
        5,
        6,
        7,
        8,
        9,
        50,
    ]  # four tokens do not suffice
    drafter = begin(Sam(otherwise=Rising()), [*text, 4])
    assert spelled(drafter, 4) == [*range(5, 10), 50, *range(6)]
    assert list(answer(drafter, 4)) == [5]  # no tree beside the copy


def test_sam_copies_further_where_more_agrees() -> None:
    text = list(range(50))
    for matched in (5, 6):
        part = Sam(threshold=5, pace=1.5, otherwise=Ngram())
        assert len(spelled(begin(part, [*text, 55, *range(matched)]), matched - 1)) == int(
            1 + 1.5 * matched
        )
    assert len(spelled(begin(Sam(longest=4), [*text, 55, *range(9)]), 8)) == 4


def test_sam_lets_the_other_drafter_grow_a_tree_where_nothing_matches() -> None:
    drafter = begin(Sam(otherwise=Rising()), [1, 2, 3])
    assert list(answer(drafter, 3, width=2)) == [4, 5]
    assert list(answer(drafter, 3, 4, width=2)) == [5, 6]


def test_sam_trusts_a_named_text_by_a_margin(tmp_path: Path) -> None:
    name = write(tmp_path, "abcdefghijklm")
    part = Sam(corpus=name, threshold=2, margin=3, otherwise=Ngram(longest=1))
    prompt = letters("xyzcdefg")
    assert spelled(begin(part, prompt), letters("g")[0], 3) == letters("hij")
    assert not spelled(
        begin(part, prompt[:-1]), letters("f")[0]
    )  # four tokens, less the margin, are one
    near = letters(
        "fgzz cdefg"
    )  # two tokens of the text itself are as good as five of the named one
    assert spelled(begin(part, near), letters("g")[0], 1) == letters("z")

"""ANPD: the longest context, then the commonest continuation."""

from pathlib import Path

import pytest

from sapwood.drafters.lookup.anpd import Anpd
from tests.helpers.lookup_drafters import answer, begin, say


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAPWOOD_CACHE", str(tmp_path / "cache"))


def test_anpd_prefers_the_longest_context_then_the_commonest() -> None:
    drafter = begin(Anpd(n=3), [1, 2, 9, 5, 2, 8, 6, 2, 8, 1, 2])
    assert list(answer(drafter, 2)) == [9, 8]
    assert list(answer(begin(Anpd(n=2), [1, 2, 9, 5, 2, 8, 6, 2, 8, 1, 2]), 2)) == [8, 9]


def test_anpd_backs_off_and_learns() -> None:
    drafter = begin(Anpd(), [1, 2, 3])
    assert not answer(drafter, 3)
    say(drafter, 7, 3)
    assert list(answer(drafter, 3)) == [7]
    say(drafter, 8, 3, 8, 3)
    assert next(iter(answer(drafter, 3))) == 8
    assert sum(answer(drafter, 3).values()) <= 1

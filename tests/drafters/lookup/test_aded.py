"""ADED: tree search over counts of n-grams."""

from pathlib import Path

import numpy as np
import pytest

from sapwood.core.tree import ROOT, Tree
from sapwood.drafters.lookup.aded import Aded
from tests.helpers.lookup_drafters import RNG, answer, begin, letters, say, write


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAPWOOD_CACHE", str(tmp_path / "cache"))


def test_aded_visits_the_likely_more_and_the_others_too() -> None:
    part = Aded(searches=64, length=2)
    drafter = begin(part, [1, 2, 3] * 6 + [1, 2, 4] * 2 + [1, 2])
    found = answer(drafter, 2)
    assert list(found) == [3, 4]
    assert found[3] == pytest.approx(0.75, abs=0.1)
    assert sum(found.values()) <= 1
    few = begin(Aded(searches=2, length=2), [1, 2, 3] * 6 + [1, 2, 4] * 2 + [1, 2])
    assert set(answer(few, 2)) == {3, 4}  # a child never visited comes first


def test_aded_asks_two_tokens_before_one() -> None:
    drafter = begin(Aded(), [1, 2, 3, 5, 2, 4, 5, 2, 4, 1, 2])
    assert list(answer(drafter, 2)) == [3]
    assert list(answer(begin(Aded(), [5, 6, 7, 8, 6]), 6)) == [7]


def test_aded_remembers_and_reads_a_corpus(tmp_path: Path) -> None:
    part = Aded(corpus=write(tmp_path, "abc"))
    first = begin(part, [50, 51])
    say(first, 52)
    assert list(answer(begin(part, [40, 50, 51], setting=None), 51)) == [52]
    assert list(answer(begin(part, letters("ab"), setting=None), 1)) == [2]


def test_aded_plans_no_more_than_a_tree_holds() -> None:
    text = np.random.default_rng(0).integers(0, 6, 3000).tolist()
    drafter = begin(Aded(searches=512, length=8, wide=50), text)
    drafter.expand(Tree(text[-1]), [(ROOT, 50)], RNG)
    assert 512 < len(drafter.plan_) <= 1024

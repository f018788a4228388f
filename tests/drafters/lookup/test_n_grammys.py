"""N-Grammys: copies from the context first, then rolled-out bigrams."""

from pathlib import Path

import pytest

from sapwood.core.tree import ROOT
from sapwood.drafters.lookup.n_grammys import NGrammys
from sapwood.drafters.lookup.ngram import Ngram
from tests.helpers.lookup_drafters import Rising, answer, begin, grown, strings


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAPWOOD_CACHE", str(tmp_path / "cache"))


def test_n_grammys_copies_before_it_rolls_out() -> None:
    drafter = begin(
        NGrammys(rows=3, length=3, bigrams=Rising()), [5, 30, 31, 5, 40, 41, 5, 30, 31, 5]
    )
    tree = grown(drafter, 5, 9, 9)
    rows = [string for string in strings(tree) if len(string) == 3]
    # twice 30 31 5, once 40 41 5; one row is left for the best bigram and what greedily follows it
    assert set(rows) == {(30, 31, 5), (40, 41, 5), (6, 7, 8)}
    first = [int(tree.tokens[node]) for node in tree.children(ROOT)]
    assert first.index(30) < first.index(40)
    assert tree.height == 3


def test_n_grammys_fills_all_rows_with_bigrams_at_first() -> None:
    tree = grown(begin(NGrammys(rows=3, length=2, bigrams=Rising()), [1, 2, 3]), 3, 9, 9)
    assert sorted(strings(tree)) == [(4,), (4, 5), (5,), (5, 6), (6,), (6, 7)]


def test_n_grammys_looks_at_as_many_tokens_as_it_is_told() -> None:
    text = [1, 5, 30, 2, 5, 40, 1, 5]
    assert set(answer(begin(NGrammys(bigrams=Ngram(), rows=9), text), 5)) == {30, 40}
    part = NGrammys(context=2, rows=1)
    assert list(answer(begin(part, text), 5)) == [30]

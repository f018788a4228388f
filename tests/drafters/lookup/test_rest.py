"""REST: a trie of all hits of a store, its selection, and its memory of outputs."""

from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given

from sapwood.backends.toy import ToyBackend
from sapwood.core.rng import Rng
from sapwood.core.sampling import Sampling
from sapwood.drafters.lookup.rest import RecentOutputs, Rest
from sapwood.drafters.lookup.suffix_array import SuffixArray
from sapwood.engine.loop import Engine
from sapwood.recipe import parse
from tests.helpers.lookup_drafters import (
    RNG,
    SETTING,
    VOCAB,
    answer,
    begin,
    grown,
    letters,
    say,
    strings,
    texts,
    write,
)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAPWOOD_CACHE", str(tmp_path / "cache"))


def hits_of(store: list[int], text: list[int], longest: int, ahead: int) -> list[list[int]]:
    """What follows the longest end of the text in a store, by looking everywhere."""
    for size in range(min(longest, len(text)), 0, -1):
        places = [
            i + size for i in range(len(store) - size + 1) if store[i : i + size] == text[-size:]
        ]
        if min(places, default=len(store)) < len(store):
            return [store[place : place + ahead] for place in places if place < len(store)]
    return []


@given(texts.filter(bool), texts.filter(bool))
def test_rest_is_a_trie_of_all_hits_by_count(store: list[int], text: list[int]) -> None:
    part = Rest(longest=6, shortest=1, ahead=3)
    part.bind(SETTING)
    part.named = SuffixArray.of(store)
    tree = grown(begin(part, text, setting=None), text[-1], 9, 5)
    hits = hits_of(store, text, 6, 3)
    counts = Counter(tuple(hit[:size]) for hit in hits for size in range(1, len(hit) + 1))
    reach = np.ones(len(tree))
    for node in range(1, len(tree)):
        reach[node] = reach[tree.parents[node]] * tree.probs[node]
    assert dict(zip(strings(tree), reach[1:].tolist(), strict=True)) == pytest.approx(
        {string: count / len(hits) for string, count in counts.items()}
    )
    for node in range(len(tree)):
        chances = tree.probs[tree.children(node)].tolist()
        assert chances == sorted(chances, reverse=True)


def test_rest_keeps_the_commonest_prefixes(tmp_path: Path) -> None:
    name = write(tmp_path, "xab" * 5 + "xac" * 3 + "xd" * 2)
    recipe = parse(
        "rest(shortest=1) + best(estimator=raw) + match + fixed(nodes=4, depth=3, width=9)"
    )
    recipe = replace(recipe, drafter=Rest(corpus=name, longest=1, shortest=1))
    engine = Engine(ToyBackend(vocab=VOCAB), recipe, encode=letters)
    tree = next(engine.rounds([50, *letters("x")], Sampling(), RNG)).tree
    assert set(strings(tree)) == {tuple(letters(text)) for text in ("a", "ab", "ac", "abx")}


def check_the_selection(part: Rest) -> None:
    store = [token for last in range(50) for token in (55, last) * 2]
    part.bind(SETTING)
    part.named = SuffixArray.of(store)
    found = answer(begin(part, [55], setting=None), 55, width=60)
    assert len(found) == 10
    assert max(found) >= 45


@dataclass
class Front(Rest):
    """A mutant that takes the first hits in order, as the authors' code does: those of low token ids."""

    def start(self, rng: Rng) -> Any:
        self.hits, most = 10**9, self.hits
        store, hits, size, drafted = super().start(rng)  # type: ignore[misc]
        return store, hits[:most], size, drafted


def test_rest_thins_hits_out_evenly() -> None:
    check_the_selection(Rest(longest=1, shortest=1, hits=10))
    with pytest.raises(AssertionError):
        check_the_selection(Front(longest=1, shortest=1, hits=20))


def test_rest_takes_no_end_of_a_store_for_a_hit() -> None:
    drafter = begin(Rest(hits=1), [1, 2, 3, 1, 2])
    assert answer(drafter, 2) == {3: 1.0}


def test_rest_without_a_store_reads_the_prompt_and_earlier_outputs() -> None:
    part = Rest()
    first = begin(part, [1, 2, 3, 1, 2])
    assert list(answer(first, 2)) == [3]
    say(first, 7, 8, 9)
    first.close()
    assert list(answer(begin(part, [50, 7, 8], setting=None), 8)) == [9]
    assert not answer(
        begin(part, [50, 8, 9], setting=None), 9
    )  # an output's end is followed by nothing
    assert list(answer(begin(part, [50, 1, 2], setting=None), 2)) == [
        7
    ]  # an output's first token has a context


def test_rest_forgets_the_oldest_outputs() -> None:
    outputs = RecentOutputs(25)
    for start in range(0, 50, 10):
        outputs.learn(range(start, start + 10))
    assert {token for one in outputs.kept for token in one} == set(range(30, 50))
    outputs.learn(range(100))
    assert [len(one) for one in outputs.kept] == [25]
    nothing = RecentOutputs(0)
    nothing.learn([1, 2])
    assert nothing.size == 0


def test_rest_doubts_short_matches_when_told_to() -> None:
    sure, unsure = (answer(begin(Rest(doubt=doubt), [1, 2, 3, 1, 2]), 2) for doubt in (False, True))
    assert sure[3] == 1.0
    assert 0 < unsure[3] < 1

"""RASD fuses two trees along their longest common prefix."""

from pathlib import Path

import pytest

from sapwood.core.tree import ROOT, Tree
from sapwood.drafters.compose.merge import Merge
from sapwood.drafters.compose.rasd import Rasd
from tests.helpers.lookup_drafters import Told, begin, grown, strings


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAPWOOD_CACHE", str(tmp_path / "cache"))


def fused(kind: type[Merge]) -> Tree:
    leader = Told({(): [5, 6], (5,): [7], (6,): [8]})
    store = Told({(): [5, 9], (5,): [7, 4], (5, 7): [3], (9,): [2]})
    return grown(begin(kind([leader, store]), [1]), 1, 4, 4)


def test_rasd_fuses_along_the_longest_common_prefix() -> None:
    tree = fused(Rasd)
    assert sorted(strings(tree)) == [(5,), (5, 4), (5, 7), (5, 7, 3), (6,), (6, 8)]
    assert len(set(strings(tree))) == len(tree) - 1  # no twins
    sources = {tuple(tree.spell(node)[1:]): int(tree.sources[node]) for node in range(1, len(tree))}
    assert sources == {
        (5,): 0b11,
        (6,): 0b01,
        (5, 7): 0b11,
        (5, 4): 0b10,
        (6, 8): 0b01,
        (5, 7, 3): 0b10,
    }
    assert tree.probs[tree.child(ROOT, 5)] > tree.probs[tree.child(ROOT, 6)]


def test_rasd_prunes_what_a_plain_merge_keeps() -> None:
    assert (9, 2) in strings(fused(Merge))
    assert (9,) not in strings(fused(Rasd))

"""GSD drafts once what two branches of a tree have in common."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from sapwood.backends.toy import ToyBackend
from sapwood.controllers.fixed import Fixed
from sapwood.core.protocols import Frontier
from sapwood.core.rng import Rng
from sapwood.core.sampling import Sampling
from sapwood.core.tree import Tree
from sapwood.drafters.compose.draft_model import DraftModel
from sapwood.drafters.compose.gsd import DraftGraph, Gsd
from sapwood.engine.loop import Engine
from sapwood.policies.static import Static
from sapwood.recipe import Recipe
from sapwood.verifiers.match import Match
from tests.helpers.lookup_drafters import RNG, Told, begin, grown, strings


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAPWOOD_CACHE", str(tmp_path / "cache"))


@dataclass
class Asked(Told):
    """Remembers what it was asked."""

    def expand(self, tree: Tree, frontier: Frontier, rng: Rng) -> None:
        self.calls = [
            *getattr(self, "calls", []),
            *(tuple(tree.spell(node)) for node, _ in frontier),
        ]
        super().expand(tree, frontier, rng)


def branches(repeat: int) -> tuple[Tree, list[tuple[int, ...]]]:
    known = {(): [5, 6], (5,): [7], (6,): [5], (5, 7): [8], (6, 5): [7], (6, 5, 7): [9]}
    drafter = begin(Gsd(Asked(known), repeat=repeat, sibling=0.0), [1])
    return grown(drafter, 1, 4, 4), drafter.drafter.calls


def test_gsd_drafts_once_what_two_branches_say() -> None:
    tree, calls = branches(repeat=1)
    # 6 5 is 5 again: its continuation is not drafted but shared
    assert sorted(strings(tree)) == [(5,), (5, 7), (5, 7, 8), (6,), (6, 5), (6, 5, 7), (6, 5, 7, 8)]
    assert (1, 6, 5) not in calls
    assert len(calls) == len(set(calls)) == 5


def test_gsd_compares_as_many_tokens_as_it_is_told() -> None:
    tree, calls = branches(repeat=2)
    assert (1, 6, 5) in calls
    assert (1, 6, 5, 7) not in calls  # 5 7 stands on the other branch
    assert (6, 5, 7, 8) in strings(tree)
    tree, calls = branches(repeat=5)
    assert (6, 5, 7, 9) in strings(tree)
    assert (1, 6, 5, 7) in calls


def check_cycles() -> None:
    known = {(): [5], (5,): [5], (5, 5): [5, 6], (5, 5, 5): [6]}
    tree = grown(begin(Gsd(Told(known), repeat=1, sibling=0.0), [5]), 5, 4, 4)
    assert sorted(strings(tree)) == [(5,), (5, 5), (5, 5, 5), (5, 5, 5, 6), (5, 5, 6)]


class Loop(DraftGraph):
    """A mutant that takes a node for one above it."""

    def settle(self) -> None:
        for node in range(len(self.meant), len(self.drafted)):
            alike = self.ends.setdefault((int(self.drafted.tokens[node]),), [])
            alike.append(node)
            self.meant.append(alike[0])


def test_gsd_never_takes_a_node_for_one_above_it(monkeypatch: pytest.MonkeyPatch) -> None:
    check_cycles()
    monkeypatch.setattr("sapwood.drafters.compose.gsd.DraftGraph", Loop)
    with pytest.raises(AssertionError):
        check_cycles()


def test_gsd_leaves_weak_siblings_out() -> None:
    known: dict[tuple[int, ...], list[int]] = {(): [5, 6, 7]}  # of chances 1/4, 1/8, 1/16
    assert strings(grown(begin(Gsd(Told(known), sibling=0.5), [1]), 1, 4, 1)) == [(5,), (6,)]


def test_gsd_draws_no_node_twice_on_a_model() -> None:
    whole = Recipe(
        Gsd(DraftModel(model=ToyBackend("draft")), repeat=1, sibling=0.0),
        Static(shape=[3, 3, 1]),
        Match(),
        Fixed(60, 3, 3),
    )
    tree = next(Engine(ToyBackend(), whole).rounds([0, 1, 2], Sampling(), RNG)).grown
    assert len(tree) == 1 + 3 + 9 + 9
    assert len(set(strings(tree))) == len(tree) - 1

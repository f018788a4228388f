"""Growths that begin behind the verdict, before the host knows it."""

import os
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from sapwood.backends.torch.fused import plain
from sapwood.backends.torch.fused.desk import TEXT
from sapwood.backends.torch.fused.grow import Grower
from sapwood.backends.torch.fused.plain import FACTS, LAST, NEW, ROOT_AT, ROOT_TOKEN, TEXT_ROWS
from sapwood.backends.torch.fused.tree import Parcel
from sapwood.controllers.fixed import Fixed
from sapwood.drafters.eagle import Eagle
from sapwood.drafters.suffix import Suffix
from sapwood.engine import Clock, Decoding
from sapwood.policies.beam import Beam
from sapwood.recipe import Recipe
from sapwood.records import Budget, Levels
from sapwood.sampling import Sampling
from sapwood.tree import Tree
from sapwood.verifiers.match import Match
from tests.interpreted import CUDA, DEVICE
from tests.test_eagle_drafter import make_text
from tests.test_fused_grow import assert_same_tree, backends, recipe_of, rounds, take_turns, tame_head
from tests.test_whole_merge import merged

BUDGET = Fixed(nodes=20, depth=4, width=4)


@pytest.fixture
def fates(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each growth that was asked for: whether it had begun before."""
    found: list[bool] = []

    def grow(self: Grower, *asked: Any) -> Any:
        before, run = self.growths, GROW(self, *asked)
        found.append(self.growths == before)
        return run

    monkeypatch.setattr(Grower, "grow", grow)
    return found


GROW = Grower.grow


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_growths_that_were_foreseen_give_the_trees_of_steps(temperature: float, fates: list[bool]) -> None:
    steps, whole = backends()
    recipe, sampling = recipe_of(tame_head(), 4, BUDGET), Sampling(max_tokens=99, temperature=temperature)
    ours, theirs = (rounds(target, recipe, make_text(20, 2), 12, sampling) for target in (whole, steps))
    assert fates == [False] * 2 + [True] * 10  # what the first one takes is known when the second has begun
    for one, other in zip(ours, theirs, strict=True):
        assert one.tokens == other.tokens
        assert_same_tree(one.grown, other.grown)
        assert_same_tree(one.tree, other.tree)
    assert any(outcome.verdict.accepted for outcome in ours)


@dataclass
class Fickle(Beam):
    """Asks for another tree than was foreseen every third time."""

    def bind(self, setting: Any) -> None:
        super().bind(setting)
        self.asked = 0

    def levels(self, budget: Budget) -> Levels | None:
        self.asked += 1
        return Levels(budget.nodes, budget.depth, 3 if self.asked % 3 else 4, budget.width)


def test_what_was_foreseen_in_vain_changes_nothing(fates: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    _, whole = backends()
    head, runs = tame_head(), []
    for able in (True, False):
        if not able:
            monkeypatch.setattr(Eagle, "foresee", lambda drafter, levels: 0.0)
        recipe = Recipe(Eagle(head=head), Fickle(), Match(), BUDGET)
        runs.append(rounds(whole, recipe, make_text(20, 2), 12, Sampling(max_tokens=99)))
    assert 0 < sum(fates) < 11
    for one, other in zip(*runs, strict=True):
        assert one.tokens == other.tokens
        assert_same_tree(one.tree, other.tree)


def test_requests_that_take_turns_do_not_take_each_others_growth(fates: list[bool]) -> None:
    take_turns(recipe_of(tame_head(), 3, BUDGET))
    assert fates
    assert not any(fates)


def test_nothing_is_foreseen_where_what_comes_may_be_known_by_heart(monkeypatch: pytest.MonkeyPatch) -> None:
    _, whole = backends()
    asked: list[Levels] = []

    def foresee(_: Eagle, levels: Levels) -> float:
        asked.append(levels)
        return 0.0

    monkeypatch.setattr(Eagle, "foresee", foresee)
    monkeypatch.setattr(Suffix, "recite", lambda drafter, root, longest: Tree(root))  # which promises nothing
    for home in (True, False):
        monkeypatch.setattr(Suffix, "at_home", home)
        rounds(whole, Recipe(merged(tame_head()), Beam(beam=3), Match(), BUDGET), make_text(20, 1), 3, Sampling())
        assert bool(asked) is not home


@pytest.mark.parametrize(
    ("paused", "busy", "growing", "booked"),
    [
        (5.0, 1.0, 3.0, 2.0),  # the growth would have been waited for
        (0.5, 1.0, 3.0, 0.5),  # it went on after the pause
        (5.0, 4.0, 3.0, 0.0),  # it was done before the host was
        (5.0, 1.0, 0.0, 0.0),  # nothing grew
    ],
)
def test_a_pause_is_booked_as_far_as_growing_would_have_been_waited_for(
    paused: float, busy: float, growing: float, booked: float
) -> None:
    decoding = Decoding.__new__(Decoding)
    decoding.clock = Clock(lambda: 100.0 + paused + busy)
    decoding.judged, decoding.paused, decoding.growing = 100.0, paused, growing
    assert decoding.overlooked() == pytest.approx(booked)


# ------------------------------------------------------------------------------------ from a verdict
@pytest.fixture(params=["plain", "kernels"])
def onward(request: pytest.FixtureRequest) -> Any:
    """Both ways to do the step; the kernel on a CUDA device or in Triton's interpreter."""
    if request.param == "plain":
        return plain.onward
    if not CUDA and os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("no CUDA device, and TRITON_INTERPRET=1 is not set")
    from tests.interpreted import require

    require()
    from sapwood.backends.torch.fused import level

    return level.onward


@pytest.mark.parametrize("path", [[0], [0, 3], [0, 2, 5, 9], [0, *range(1, TEXT)], [0, *range(1, TEXT + 4)]], ids=len)
def test_facts_follow_from_the_verdict(onward: Any, path: list[int]) -> None:
    parcel = Parcel(torch.device(DEVICE))
    parcel.rows.tokens.copy_(100 + torch.arange(len(parcel.rows.tokens)))
    verdict = parcel.field("verdict")
    verdict[:] = 7  # what an earlier walk left behind
    verdict[: 2 + len(path)] = torch.tensor([len(path), 55, *path])
    facts, tokens = torch.zeros(FACTS, dtype=torch.int64), torch.full((TEXT,), 9)
    facts[ROOT_AT], facts[TEXT_ROWS] = 40, 33
    facts, tokens = facts.to(DEVICE), tokens.to(DEVICE)
    onward(parcel, facts, tokens)
    new = min(len(path), TEXT)
    assert [int(facts[place]) for place in (NEW, LAST, ROOT_TOKEN, TEXT_ROWS)] == [new, new - 1, 55, 33]
    assert int(facts[ROOT_AT]) == 40 + len(path)
    if len(path) <= TEXT:  # longer texts are told by the host
        assert tokens.tolist()[:new] == [100 + node for node in path[1:]] + [55]

"""Growths that begin behind the verdict, before the host knows it."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch

from sapwood.backends.torch.cuda.draft import reference
from sapwood.backends.torch.cuda.draft.device_tree import RoundBuffer
from sapwood.backends.torch.cuda.draft.draft_buffers import MAX_NEW_ROWS
from sapwood.backends.torch.cuda.draft.reference import (
    LAST,
    NEW,
    ROOT_AT,
    ROOT_TOKEN,
    SCALARS,
    TEXT_ROWS,
)
from sapwood.backends.torch.cuda.draft.tree_builder import CudaTreeBuilder
from sapwood.controllers.fixed import Fixed
from sapwood.core.sampling import Sampling
from sapwood.core.tree import Tree
from sapwood.core.types import Budget, StageClock, TreeShape
from sapwood.drafters.heads.eagle3 import Eagle3
from sapwood.drafters.lookup.suffix import Suffix
from sapwood.engine.request_decoder import RequestDecoder
from sapwood.policies.beam import Beam
from sapwood.recipe import Recipe
from sapwood.verifiers.match import Match
from tests.helpers.eagle_heads import beam_recipe, merged_with_lookup, tame_head
from tests.helpers.engine_rounds import first_rounds, make_text
from tests.helpers.triton_mode import DEVICE
from tests.helpers.whole_tree_targets import assert_same_tree, backends, take_turns

BUDGET = Fixed(nodes=20, depth=4, width=4)


@pytest.fixture
def fates(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each growth that was asked for: whether it had begun before."""
    found: list[bool] = []

    def grow(self: CudaTreeBuilder, *asked: Any) -> Any:
        before = self.drafts
        run = GROW(self, *asked)
        found.append(self.drafts == before)
        return run

    monkeypatch.setattr(CudaTreeBuilder, "grow", grow)
    return found


GROW = CudaTreeBuilder.grow


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_growths_that_were_foreseen_give_the_trees_of_steps(
    temperature: float, fates: list[bool]
) -> None:
    steps, whole = backends()
    recipe = beam_recipe(tame_head(), 4, BUDGET)
    sampling = Sampling(max_tokens=99, temperature=temperature)
    ours, theirs = (
        first_rounds(target, recipe, make_text(20, 2), 12, sampling) for target in (whole, steps)
    )
    assert (
        fates == [False] * 2 + [True] * 10
    )  # what the first one takes is known when the second has begun
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

    def tree_shape(self, budget: Budget) -> TreeShape | None:
        self.asked += 1
        return TreeShape(budget.nodes, budget.depth, 3 if self.asked % 3 else 4, budget.width)


def test_what_was_foreseen_in_vain_changes_nothing(
    fates: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, whole = backends()
    head = tame_head()
    runs = []
    for able in (True, False):
        if not able:
            monkeypatch.setattr(Eagle3, "prelaunch", lambda drafter, shape, tree: None)
        recipe = Recipe(Eagle3(head=head), Fickle(), Match(), BUDGET)
        runs.append(first_rounds(whole, recipe, make_text(20, 2), 12, Sampling(max_tokens=99)))
    assert 0 < sum(fates) < 11
    for one, other in zip(*runs, strict=True):
        assert one.tokens == other.tokens
        assert_same_tree(one.tree, other.tree)


def test_requests_that_take_turns_do_not_take_each_others_growth(fates: list[bool]) -> None:
    take_turns(beam_recipe(tame_head(), 3, BUDGET))
    assert fates
    assert not any(fates)


def test_nothing_is_foreseen_where_what_comes_may_be_known_by_heart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, whole = backends()
    asked: list[TreeShape] = []

    def prelaunch(_: Eagle3, shape: TreeShape, tree: Tree) -> None:
        asked.append(shape)

    monkeypatch.setattr(Eagle3, "prelaunch", prelaunch)
    monkeypatch.setattr(
        Suffix, "likely_path", lambda drafter, root, longest: Tree(root)
    )  # which promises nothing
    for home in (True, False):
        monkeypatch.setattr(Suffix, "matches_text", lambda drafter, home=home: home)
        first_rounds(
            whole,
            Recipe(merged_with_lookup(tame_head()), Beam(beam=3), Match(), BUDGET),
            make_text(20, 1),
            3,
            Sampling(),
        )
        assert bool(asked) is not home


def test_a_draft_is_launched_ahead_again_once_looked_up_paths_are_seldom_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, whole = backends()
    asked: list[int] = []
    rounds: list[int] = []

    def prelaunch(_: Eagle3, shape: TreeShape, tree: Tree) -> None:
        asked.append(len(rounds))

    def nothing(_: Suffix, root: int, longest: int) -> Tree:
        rounds.append(root)
        return Tree(root)

    monkeypatch.setattr(Eagle3, "prelaunch", prelaunch)
    monkeypatch.setattr(Suffix, "likely_path", nothing)
    monkeypatch.setattr(Suffix, "matches_text", lambda _: True)
    recipe = Recipe(merged_with_lookup(tame_head()), Beam(beam=3), Match(), BUDGET)
    first_rounds(whole, recipe, make_text(20, 1), 9, Sampling(max_tokens=99))
    # five that were not taken leave a share of 0.75 ** 5
    assert asked[0] == 5
    assert len(asked) == len(rounds) - 4


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
    decoding = RequestDecoder.__new__(RequestDecoder)
    decoding.clock = StageClock(lambda: 100.0 + paused + busy)
    decoding.verified_at = 100.0
    decoding.paused = paused
    decoding.device_draft_seconds = growing
    assert decoding.draft_seconds_in_pause() == pytest.approx(booked)


# ----------------------------------------------------------------------------------- from a verdict
@pytest.fixture(params=["plain", "kernels"])
def complete_draft_args(request: pytest.FixtureRequest) -> Any:
    """Both ways to do the step; the kernel on a CUDA device or in Triton's interpreter."""
    if request.param == "plain":
        return reference.complete_draft_args
    from tests.helpers.triton_mode import require

    require()
    from sapwood.backends.torch.cuda.draft import draft_kernels

    return draft_kernels.complete_draft_args


@pytest.mark.parametrize(
    "path",
    [[0], [0, 3], [0, 2, 5, 9], [0, *range(1, MAX_NEW_ROWS)], [0, *range(1, MAX_NEW_ROWS + 4)]],
    ids=len,
)
def test_facts_follow_from_the_verdict(complete_draft_args: Any, path: list[int]) -> None:
    round_buffer = RoundBuffer(torch.device(DEVICE))
    round_buffer.rows.tokens.copy_(100 + torch.arange(len(round_buffer.rows.tokens)))
    verdict = round_buffer.field("verdict")
    verdict[:] = 7  # what an earlier walk left behind
    verdict[: 2 + len(path)] = torch.tensor([len(path), 55, *path])
    facts = torch.zeros(SCALARS, dtype=torch.int64)
    tokens = torch.full((MAX_NEW_ROWS,), 9)
    facts[ROOT_AT], facts[TEXT_ROWS] = 40, 33
    facts = facts.to(DEVICE)
    tokens = tokens.to(DEVICE)
    complete_draft_args(round_buffer, facts, tokens)
    new = min(len(path), MAX_NEW_ROWS)
    assert [int(facts[place]) for place in (NEW, LAST, ROOT_TOKEN, TEXT_ROWS)] == [
        new,
        new - 1,
        55,
        33,
    ]
    assert int(facts[ROOT_AT]) == 40 + len(path)
    if len(path) <= MAX_NEW_ROWS:  # longer texts are told by the host
        assert tokens.tolist()[:new] == [100 + node for node in path[1:]] + [55]

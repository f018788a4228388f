"""Rounds beside the pass one by one: who drafts, whose time it is, what is waited for and kept."""

import itertools
from collections.abc import Sequence
from threading import Event
from typing import Any

import pytest

from sapwood.backends.toy import ToyBackend, ToyOutput
from sapwood.controllers.fixed import Fixed
from sapwood.core.array_types import IntArray
from sapwood.core.overlap import DraftWay, OverlapGauge
from sapwood.core.protocols import TreeInput
from sapwood.core.rng import KeyedRng
from sapwood.core.sampling import Sampling
from sapwood.core.tree import ROOT, Tree
from sapwood.core.types import Outcome, StageTimes
from sapwood.drafters.compose.draft_model import DraftModel
from sapwood.engine import overlap as overlap_module
from sapwood.engine.loop import Engine
from sapwood.engine.overlap import subtree
from sapwood.policies.pearl import Pearl
from sapwood.recipe import Recipe
from sapwood.verifiers.match import Match


@pytest.fixture(autouse=True)
def _one_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """The way of the first round in all of them."""
    monkeypatch.setattr(OverlapGauge, "add", lambda self, tokens, seconds: None)


def engine(target: ToyBackend, **options: Any) -> Engine:
    drafter = DraftModel(model=ToyBackend("draft"))
    return Engine(target, Recipe(drafter, Pearl(first=2), Match(), Fixed(3, 3, 4)), **options)


def rounds(made: Engine, most: int = 4) -> list[Outcome]:
    found = made.rounds([0, 1, 2], Sampling(max_tokens=1000), KeyedRng(0))
    return list(itertools.islice(found, most))


@pytest.mark.parametrize("way", DraftWay)
def test_a_round_drafts_unless_its_way_is_none(way: DraftWay) -> None:
    made = engine(ToyBackend("a"))
    policy: Any = made.recipe.policy
    policy.gauge.way = way
    for outcome in rounds(made):
        assert outcome.asked is (len(outcome.grown) > 1) is (way is not DraftWay.NONE)


def test_every_moment_of_a_round_belongs_to_one_stage() -> None:
    ticks = itertools.count()
    found = rounds(engine(ToyBackend("a"), now=lambda: float(next(ticks))))
    # as in a round without overlap: the draft before the pass, and what the drafter learnt before
    assert {outcome.times for outcome in found[1:]} == {StageTimes(draft=2, verify=1, other=1)}


def test_the_draft_ends_when_a_launched_pass_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    order = list[str]()

    class Launched(ToyOutput):
        @property
        def overlaps_host(self) -> bool:
            return True

        def argmax(self) -> IntArray:
            order.append("wait")
            return super().argmax()

    class Device(ToyBackend):
        def score(self, work: Sequence[TreeInput], chunks: Sequence[Any] = ()) -> Any:
            order.append("launch")
            outputs: Any = super().score(work, chunks)
            return [Launched(output.rows) for output in outputs]

    class Over(Event):
        def set(self) -> None:
            order.append("over")
            super().set()

    monkeypatch.setattr(overlap_module, "Event", Over)
    assert len(rounds(engine(Device("a")), most=1)) == 1
    assert order[:3] == ["launch", "wait", "over"]


def test_a_drawn_node_of_a_subtree_is_still_a_drawn_one() -> None:
    tree = Tree(5)
    top = tree.add(ROOT, 1, 0.6)
    chosen = tree.add(top, 3, 0.5, source=1)
    drawn = tree.add(top, 3, 0.4, rank=1, source=2, sampled=True)
    below = subtree(tree, top)
    for name in ("tokens", "probs", "ranks", "sources", "sampled"):
        assert getattr(below, name)[1:].tolist() == getattr(tree, name)[[chosen, drawn]].tolist()

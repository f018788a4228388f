"""Pieces of a round by themselves: time that a pause hid, shared passes told on, devices prepared."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from sapwood.backends.toy import ToyBackend
from sapwood.controllers.fixed import Fixed
from sapwood.core.protocols import RequestContext
from sapwood.core.rng import KeyedRng
from sapwood.core.sampling import Sampling
from sapwood.core.tree import Tree
from sapwood.core.types import Budget, StageClock, StageTimes, TreeShape, Verdict
from sapwood.drafters.lookup.ngram import Ngram
from sapwood.engine import prelaunch as prelaunch_module
from sapwood.engine.loop import Engine
from sapwood.engine.prelaunch import (
    NextRound,
    plan_next,
    prepare_device,
    whole_tree_parts,
)
from sapwood.engine.request_decoder import RequestDecoder
from sapwood.errors import SapwoodError
from sapwood.policies.chain import Chain
from sapwood.recipe import Recipe
from sapwood.verifiers.match import Match


def decoder(
    sampling: Sampling | None = None, now: Callable[[], float] = lambda: 0.0, **options: Any
) -> RequestDecoder:
    engine = Engine(ToyBackend(), Recipe(Ngram(), Chain(), Match(), Fixed()), now=now)
    options = {"session": None, **options}
    return RequestDecoder(engine, [0, 1, 2], sampling or Sampling(), KeyedRng(0), **options)


@pytest.mark.parametrize(
    ("growing", "paused", "since", "hidden"),
    [
        (5.0, 3.0, 4.0, 3.0),  # it grew all through the pause
        (2.0, 3.0, 4.0, 1.0),  # one of its two seconds fell into the host's own second
        (0.5, 3.0, 4.0, 0.0),  # it was done before the pause
        (0.0, 3.0, 4.0, 0.0),
        (5.0, 0.0, 4.0, 0.0),  # there was no pause
    ],
)
def test_drafting_behind_a_pause_is_counted(
    growing: float, paused: float, since: float, hidden: float
) -> None:
    request = decoder()
    request.device_draft_seconds = growing
    request.paused = paused
    request.verified_at = 10.0
    request.clock.last = 10.0 + since
    assert request.draft_seconds_in_pause() == pytest.approx(hidden)


@pytest.mark.parametrize(("seconds", "draft"), [(5.0, 3.0), (2.0, 2.0), (0.0, 0.0)])
def test_a_draft_that_was_launched_ahead_costs_what_it_took_of_the_pause(
    seconds: float, draft: float
) -> None:
    time = [0.0]
    request = decoder(now=lambda: time[0])
    [scores] = ToyBackend().score([request.draft()])
    request.finish_round(scores)
    request.next_round = NextRound(Budget(4, 2, 1), launched=True, seconds=seconds)
    time[0] += 3.0  # the caller's own
    [scores] = ToyBackend().score([request.draft()])
    assert request.finish_round(scores).times == StageTimes(draft=draft)


def test_a_stage_gives_no_more_than_it_has() -> None:
    clock = StageClock(lambda: 0.0)
    clock.add("verify", 2.0)
    clock.shift("verify", "draft", 5.0)
    assert clock.split().draft == pytest.approx(2.0)
    clock.add("verify", 2.0)
    clock.shift("verify", "draft", 0.5)
    times = clock.split()
    assert (times.draft, times.verify) == (0.5, 1.5)


@pytest.fixture
def whole(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The parts that handle whole trees, by their slot."""
    able = {"drafter", "policy"}

    def drafts(part: object) -> bool:
        return "drafter" in able and not isinstance(part, Ngram)

    monkeypatch.setattr(prelaunch_module, "drafts_whole_trees", drafts)
    monkeypatch.setattr(prelaunch_module, "shapes_whole_trees", lambda _: "policy" in able)
    return able


def test_a_device_prepares_for_all_shapes_of_the_largest_budget(whole: set[str]) -> None:
    ready: list[Any] = []
    recipe: Any = SimpleNamespace(
        policy=SimpleNamespace(tree_shapes=lambda budget: [budget, 1]),
        controller=SimpleNamespace(largest=9),
        drafter=SimpleNamespace(prepare=ready.append),
    )
    prepare_device(recipe)
    assert ready == [[9, 1]]
    for missing in ("drafter", "policy"):
        whole.discard(missing)
        prepare_device(recipe)
        whole.add(missing)
    recipe.controller.largest = None
    prepare_device(recipe)
    assert len(ready) == 1


def test_the_next_tree_is_shaped_where_it_fits_and_will_be_wanted(whole: set[str]) -> None:
    budget = Budget(4, 2, 2)
    shape = TreeShape(4, 2, 2, 2)
    drafter: Any = SimpleNamespace()
    policy: Any = SimpleNamespace(tree_shape=lambda budget: shape)

    def plan(left: int = 9, fits: bool = True, wanted: Budget = budget) -> NextRound:
        controller: Any = SimpleNamespace(budget=lambda: wanted)
        return plan_next(whole_tree_parts(drafter, policy), controller, lambda _: fits, left)

    assert plan() == plan(left=3) == NextRound(budget, shape)
    assert plan(left=2) == plan(fits=False) == NextRound(budget)
    nothing = Budget(0, 2, 2)
    assert plan(wanted=nothing) == NextRound(nothing)
    whole.discard("drafter")
    assert plan() == NextRound(budget)


@pytest.mark.usefixtures("whole")
def test_a_launched_round_is_known_with_the_seconds_of_its_draft() -> None:
    calls: list[str] = []
    budget, shape = Budget(4, 2, 2), TreeShape(4, 2, 2, 2)
    launch: Any = SimpleNamespace(
        launch_draft=lambda: calls.append("draft"),
        launch_pass=lambda: calls.append("pass"),
        seconds=0.25,
    )
    request: Any = decoder()
    request.tree = Tree(2)
    request.whole_trees = whole_tree_parts(
        SimpleNamespace(prelaunch=lambda shape, tree: launch),
        SimpleNamespace(tree_shape=lambda budget: shape),
    )
    request.controller = SimpleNamespace(budget=lambda: budget)
    request.verifier = SimpleNamespace(follows=lambda probs: True)
    probs: Any = SimpleNamespace(launch_follow=lambda position, rng: True)
    planned = request.prelaunch(probs)
    assert planned == NextRound(budget, shape, launched=True, seconds=0.25)
    assert calls == ["draft", "pass"]
    probs.launch_follow = lambda position, rng: False
    assert request.prelaunch(probs) == NextRound(budget, shape)


def test_room_is_what_context_request_and_backend_leave() -> None:
    request = decoder(Sampling(max_tokens=5))
    context = request.info.context
    length = request.session.length
    assert request.left == 5
    assert request.room(7) == (7, 4)  # the bonus comes on top
    assert request.room(10_000) == (request.info.max_nodes - 1, 4)
    assert request.room(7, begun=True) == (7, context - length - 2)
    request.sampler.commit([0, 1])
    assert (request.left, request.room(7)) == (3, (7, 2))
    assert request._fits(Budget(4, context - length - 2, 1))
    assert not request._fits(Budget(4, context - length - 1, 1))


def test_a_request_goes_on_from_what_it_has_said() -> None:
    request = decoder(emitted=[2, 1])
    assert request.root == 1
    assert request.session.length == 4
    assert request.left == Sampling().max_tokens - 2


def test_a_session_is_closed_where_a_part_refuses_the_request() -> None:
    closed = []

    class Refusing(Chain):
        def reset(self, request: RequestContext) -> None:
            raise SapwoodError("no")

    target = ToyBackend()
    engine = Engine(target, Recipe(Ngram(), Refusing(), Match(), Fixed()))
    session = target.open([0, 1])
    session.close = lambda: closed.append(True)  # type: ignore[method-assign]
    with pytest.raises(SapwoodError, match="no"):
        RequestDecoder(engine, [0, 1, 2], Sampling(), KeyedRng(0), session)
    assert closed == [True]


@pytest.mark.parametrize(("most", "kept"), [(1, 0), (2, 1), (3, 2), (9, 2)])
def test_a_verdict_is_cut_to_what_the_request_still_wants(most: int, kept: int) -> None:
    request = decoder(Sampling(max_tokens=most))
    request.tree = Tree(2)
    request.tree.add(request.tree.add(0, 7, 0.5), 8, 0.5)
    whole = Verdict((0, 1, 2), 9)
    verifier: Any = SimpleNamespace(verify=lambda *_: whole)
    request.verifier = verifier
    probs: Any = None
    found = request.verify(probs)
    assert found == Verdict((0, 1, 2)[: kept + 1], [7, 8, 9][kept])
    request.sampler.commit([0] * most)  # nothing is wanted, and a token comes all the same
    assert request.verify(probs) == Verdict((0,), 7)

"""Passes that are queued behind the growth of their tree, before the host knows the verdict."""

from collections.abc import Iterator
from itertools import count, pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.interpreted import DEVICE, require

require()

from sapwood.backends.torch.fused import network, plain  # noqa: E402
from sapwood.backends.torch.fused.backend import FusedBackend  # noqa: E402
from sapwood.backends.torch.fused.desk import Stopwatch  # noqa: E402
from sapwood.backends.torch.fused.facts import Facts, Moved  # noqa: E402
from sapwood.backends.torch.fused.foreseen import Foreseen  # noqa: E402
from sapwood.backends.torch.fused.grow import Grower  # noqa: E402
from sapwood.backends.torch.fused.network import Fused  # noqa: E402
from sapwood.backends.torch.fused.plain import FACTS, HOME, NODES, ROOT_AT  # noqa: E402
from sapwood.backends.torch.fused.queued import Runner  # noqa: E402
from sapwood.backends.torch.fused.tree import Parcel  # noqa: E402
from sapwood.controllers.fixed import Fixed  # noqa: E402
from sapwood.engine import Engine  # noqa: E402
from sapwood.recipe import Recipe  # noqa: E402
from sapwood.records import Outcome  # noqa: E402
from sapwood.rng import Keyed  # noqa: E402
from sapwood.sampling import Sampling  # noqa: E402
from tests import tiny  # noqa: E402
from tests.test_eagle_drafter import make_text  # noqa: E402
from tests.test_fused_grow import recipe_of, tame_head  # noqa: E402

BUDGET = Fixed(nodes=30, depth=2, width=24)  # many guesses of one token: some are right


class Whole(FusedBackend):
    """Grows whole trees of a head wherever it runs."""

    def grower(self, head: Any, embedding: torch.Tensor) -> Any:
        return Grower(head, embedding)


@pytest.fixture
def target(monkeypatch: pytest.MonkeyPatch) -> Whole:
    monkeypatch.setattr(network, "OFTEN", 0)  # the first pass of its kind makes the second one frequent
    return Whole(tiny.make("llama").to(DEVICE), "tiny")


@pytest.fixture
def fates(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """How each tree on the device came to its pass: asked for, or queued and taken up."""
    found: list[str] = []
    for name in ("follow", "take_up"):
        monkeypatch.setattr(Fused, name, noted(getattr(Fused, name), name, found))
    return found


def noted(function: Any, name: str, found: list[str]) -> Any:
    def call(*asked: Any, **more: Any) -> Any:
        found.append(name)
        return function(*asked, **more)

    return call


def rounds(target: Whole, recipe: Recipe, sampling: Sampling, most: int = 7) -> list[Outcome]:
    engine = Engine(target, recipe)
    return [outcome for _, outcome in zip(range(most), running(engine, sampling), strict=False)]


def running(engine: Engine, sampling: Sampling) -> Iterator[Outcome]:
    yield from engine.rounds(make_text(20, 2), sampling, Keyed(3))


def never(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Runner, "home", lambda runner, nodes, depth: None)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_queued_passes_say_what_others_say(
    temperature: float, target: Whole, fates: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe, sampling = recipe_of(tame_head(), 4, BUDGET), Sampling(max_tokens=99, temperature=temperature)
    ours = rounds(target, recipe, sampling)
    assert fates.count("take_up") >= 3
    never(monkeypatch)
    theirs = rounds(target, recipe, sampling)
    assert fates[-len(theirs) :].count("take_up") == 0
    assert [outcome.tokens for outcome in ours] == [outcome.tokens for outcome in theirs]
    assert [outcome.tree.tokens.tolist() for outcome in ours] == [outcome.tree.tokens.tolist() for outcome in theirs]
    assert any(outcome.verdict.accepted for outcome in ours)


def test_scores_can_be_read_until_the_next_pass_is_asked_for(target: Whole, fates: list[str]) -> None:
    seen = []
    for outcome in running(Engine(target, recipe_of(tame_head(), 4, BUDGET)), Sampling(max_tokens=99)):
        node, bonus = outcome.verdict.path[-1], outcome.verdict.bonus
        seen.append(int(outcome.scores.logits(node).argmax()) == bonus)
        if len(seen) == 7:
            break
    assert "take_up" in fates
    assert all(seen)


def test_a_pass_in_vain_changes_nothing(target: Whole, fates: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    recipe, sampling, asks, asked = recipe_of(tame_head(), 4, BUDGET), Sampling(max_tokens=99), Foreseen.asks, count()

    def fickle(foreseen: Foreseen, *levels: Any) -> bool:
        return asks(foreseen, *levels) and next(asked) % 3 > 0

    monkeypatch.setattr(Foreseen, "asks", fickle)
    ours = rounds(target, recipe, sampling, 9)
    assert ("take_up", "follow") in pairwise(fates)
    never(monkeypatch)
    assert [outcome.tokens for outcome in ours] == [outcome.tokens for outcome in rounds(target, recipe, sampling, 9)]


@pytest.mark.parametrize("most", [8, 11])
def test_a_request_ends_inside_a_tree_that_was_queued(
    most: int, target: Whole, fates: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Stopwatch, "seconds", lambda watch: 1e-3)  # as on a device
    recipe, said = recipe_of(tame_head(), 4, BUDGET), list[int]()
    for outcome in running(Engine(target, recipe), Sampling(max_tokens=most)):
        said += outcome.tokens
        if len(said) >= most:
            break
    assert len(said) == most
    assert fates[-1] == "take_up"  # what was begun goes on, even where one token is wanted
    never(monkeypatch)
    whole = [token for outcome in rounds(target, recipe, Sampling(max_tokens=99), most) for token in outcome.tokens]
    assert said == whole[:most]


def test_requests_that_take_turns_do_not_take_each_others_pass(target: Whole, fates: list[str]) -> None:
    engine, sampling = Engine(target, recipe_of(tame_head(), 4, BUDGET)), Sampling(max_tokens=99)
    alone = [outcome.tokens for _, outcome in zip(range(5), running(engine, sampling), strict=False)]
    several = [running(engine, sampling) for _ in range(2)]
    turns = [[next(one).tokens for one in several] for _ in range(5)]
    assert [turn[0] for turn in turns] == [turn[1] for turn in turns] == alone


# ------------------------------------------------------------------------------------- what a pass is told
@pytest.fixture(params=["plain", "kernels"])
def proceed(request: pytest.FixtureRequest) -> Any:
    from sapwood.backends.torch.fused import level

    return plain.proceed if request.param == "plain" else level.proceed


@pytest.mark.parametrize("path", [[0], [0, 1, 2], [0, 3], [0, 1, 5, 9]], ids=str)
def test_what_a_pass_must_know_follows_from_the_verdict(proceed: Any, path: list[int]) -> None:
    parcel, told = Parcel(torch.device(DEVICE)), Facts(torch.device(DEVICE))
    verdict = parcel.field("verdict")
    verdict[:] = 7  # what an earlier walk left behind
    verdict[: 2 + len(path)] = torch.tensor([len(path), 55, *path])
    facts = torch.zeros(FACTS, dtype=torch.int64, device=DEVICE)
    facts[HOME], facts[ROOT_AT], facts[NODES] = 4096, 40 + len(path), 12
    proceed(parcel, facts, told.there)
    stay = next((place for place, node in enumerate(path) if place != node), len(path))
    told.tell(4096, 40 + len(path), 13, Moved(40, stay, len(path)))
    assert told.there.tolist()[:6] == told.here[:6].tolist()


def test_nothing_is_queued_where_it_would_not_fit(target: Whole) -> None:
    session: Any = target.open(make_text(20, 2))
    turn: Any = SimpleNamespace(depth=3, parcel=Parcel(torch.device(DEVICE)))
    runner, network = Runner(target, session, turn), target.fused
    assert runner.home(5, 3) is None, "no such pass has run"
    network._used[network._shape(5, runner.stop), turn.parcel.path.data_ptr()] = 1
    assert runner.home(5, 3) == session.seat.first
    assert runner.home(5, target.info.context) is None
    turn.depth = 40
    assert runner.home(5, 3) is None, "so long a path is moved in several steps"
    turn.depth = 3
    session.close()
    assert runner.home(5, 3) is None

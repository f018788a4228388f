"""Passes that are queued behind the growth of their tree, before the host knows the verdict."""

from collections.abc import Iterator
from itertools import count, pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.helpers.triton_mode import DEVICE, few_programs, require

require()

from sapwood.backends.torch.cuda import network
from sapwood.backends.torch.cuda.backend import CudaBackend
from sapwood.backends.torch.cuda.draft import reference
from sapwood.backends.torch.cuda.draft.device_tree import RoundBuffer
from sapwood.backends.torch.cuda.draft.reference import FIRST_SLOT, NODES, ROOT_AT, SCALARS
from sapwood.backends.torch.cuda.draft.tree_builder import CudaTreeBuilder
from sapwood.backends.torch.cuda.network import CudaNetwork
from sapwood.backends.torch.cuda.pass_inputs import PassArgs, PendingMove
from sapwood.backends.torch.cuda.prelaunch import PassRunner, PrelaunchedDraft
from sapwood.controllers.fixed import Fixed
from sapwood.core.rng import KeyedRng
from sapwood.core.sampling import Sampling
from sapwood.core.types import Outcome
from sapwood.engine.loop import Engine
from sapwood.recipe import Recipe
from tests.helpers import tiny_models
from tests.helpers.eagle_heads import beam_recipe, tame_head
from tests.helpers.engine_rounds import make_text

BUDGET = Fixed(nodes=30, depth=2, width=24)  # many guesses of one token: some are right


class Whole(CudaBackend):
    """Grows whole trees of a head wherever it runs."""

    def tree_builder(self, head: Any, embedding: torch.Tensor) -> Any:
        return CudaTreeBuilder(head, embedding)


@pytest.fixture
def target(monkeypatch: pytest.MonkeyPatch) -> Whole:
    monkeypatch.setattr(
        network, "CAPTURE_AFTER", 0
    )  # the first pass of its kind makes the second one frequent
    few_programs(monkeypatch)
    return Whole(tiny_models.make("llama").to(DEVICE), "tiny")


@pytest.fixture
def fates(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """How each tree on the device came to its pass: launched when asked for, or ahead."""
    found: list[str] = []
    for name in ("run_device_tree", "prelaunched_result"):
        monkeypatch.setattr(CudaNetwork, name, noted(getattr(CudaNetwork, name), name, found))
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
    yield from engine.rounds(make_text(20, 2), sampling, KeyedRng(3))


def never(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PassRunner, "first_slot", lambda runner, nodes, depth: None)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_queued_passes_say_what_others_say(
    temperature: float, target: Whole, fates: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = beam_recipe(tame_head(), 4, BUDGET)
    sampling = Sampling(max_tokens=99, temperature=temperature)
    ours = rounds(target, recipe, sampling)
    assert fates.count("prelaunched_result") >= 3
    never(monkeypatch)
    theirs = rounds(target, recipe, sampling)
    assert fates[-len(theirs) :].count("prelaunched_result") == 0
    assert [outcome.tokens for outcome in ours] == [outcome.tokens for outcome in theirs]
    assert [outcome.tree.tokens.tolist() for outcome in ours] == [
        outcome.tree.tokens.tolist() for outcome in theirs
    ]
    assert any(outcome.verdict.accepted for outcome in ours)


def test_scores_can_be_read_until_the_next_pass_is_asked_for(
    target: Whole, fates: list[str]
) -> None:
    seen = []
    for outcome in running(
        Engine(target, beam_recipe(tame_head(), 4, BUDGET)), Sampling(max_tokens=99)
    ):
        node = outcome.verdict.path[-1]
        bonus = outcome.verdict.bonus
        seen.append(int(outcome.scores.logits(node).argmax()) == bonus)
        if len(seen) == 7:
            break
    assert "prelaunched_result" in fates
    assert all(seen)


def test_a_pass_in_vain_changes_nothing(
    target: Whole, fates: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = beam_recipe(tame_head(), 4, BUDGET)
    sampling = Sampling(max_tokens=99)
    asks = PrelaunchedDraft.matches
    asked = count()

    def fickle(prelaunched: PrelaunchedDraft, *levels: Any) -> bool:
        return asks(prelaunched, *levels) and next(asked) % 3 > 0

    monkeypatch.setattr(PrelaunchedDraft, "matches", fickle)
    ours = rounds(target, recipe, sampling, 9)
    assert ("prelaunched_result", "run_device_tree") in pairwise(fates)
    never(monkeypatch)
    assert [outcome.tokens for outcome in ours] == [
        outcome.tokens for outcome in rounds(target, recipe, sampling, 9)
    ]


@pytest.mark.parametrize("most", [8, 11])
def test_a_request_ends_inside_a_tree_that_was_queued(
    most: int, target: Whole, fates: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = beam_recipe(tame_head(), 4, BUDGET)
    said = list[int]()
    for outcome in running(Engine(target, recipe), Sampling(max_tokens=most)):
        said += outcome.tokens
        if len(said) >= most:
            break
    assert len(said) == most
    assert (
        fates[-1] == "prelaunched_result"
    )  # what was begun goes on, even where one token is wanted
    never(monkeypatch)
    whole = [
        token
        for outcome in rounds(target, recipe, Sampling(max_tokens=99), most)
        for token in outcome.tokens
    ]
    assert said == whole[:most]


def test_requests_that_take_turns_do_not_take_each_others_pass(
    target: Whole, fates: list[str]
) -> None:
    engine = Engine(target, beam_recipe(tame_head(), 4, BUDGET))
    sampling = Sampling(max_tokens=99)
    alone = [
        outcome.tokens for _, outcome in zip(range(5), running(engine, sampling), strict=False)
    ]
    several = [running(engine, sampling) for _ in range(2)]
    turns = [[next(one).tokens for one in several] for _ in range(5)]
    assert [turn[0] for turn in turns] == [turn[1] for turn in turns] == alone


# ------------------------------------------------------------------------------ what a pass is told
@pytest.fixture(params=["plain", "kernels"])
def write_pass_args(request: pytest.FixtureRequest) -> Any:
    from sapwood.backends.torch.cuda.draft import draft_kernels

    return reference.write_pass_args if request.param == "plain" else draft_kernels.write_pass_args


@pytest.mark.parametrize("path", [[0], [0, 1, 2], [0, 3], [0, 1, 5, 9]], ids=str)
def test_what_a_pass_must_know_follows_from_the_verdict(
    write_pass_args: Any, path: list[int]
) -> None:
    round_buffer = RoundBuffer(torch.device(DEVICE))
    told = PassArgs(torch.device(DEVICE))
    verdict = round_buffer.field("verdict")
    verdict[:] = 7  # what an earlier walk left behind
    verdict[: 2 + len(path)] = torch.tensor([len(path), 55, *path])
    facts = torch.zeros(SCALARS, dtype=torch.int64, device=DEVICE)
    facts[FIRST_SLOT], facts[ROOT_AT], facts[NODES] = 4096, 40 + len(path), 12
    write_pass_args(round_buffer, facts, told.on_device)
    stay = next((place for place, node in enumerate(path) if place != node), len(path))
    told.write(4096, 40 + len(path), 13, PendingMove(40, stay, len(path)))
    assert told.on_device.tolist()[:6] == told.host_array[:6].tolist()


def test_nothing_is_queued_where_it_would_not_fit(target: Whole) -> None:
    session: Any = target.open(make_text(20, 2))
    turn: Any = SimpleNamespace(depth=3, round_buffer=RoundBuffer(torch.device(DEVICE)))
    runner = PassRunner(target, session, turn)
    network = target.fused
    assert runner.first_slot(5, 3) is None, "no such pass has run"
    network._used[network._shape(5, runner.stop), turn.round_buffer.path.data_ptr()] = 1
    assert runner.first_slot(5, 3) == session.sequence.first
    assert runner.first_slot(5, target.info.context) is None
    turn.depth = 40
    assert runner.first_slot(5, 3) is None, "so long a path is moved in several steps"
    turn.depth = 3
    session.close()
    assert runner.first_slot(5, 3) is None

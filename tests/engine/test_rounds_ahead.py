"""Rounds on a device, one ahead of the host: the same texts, whatever happens meanwhile."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sapwood.controllers.fixed import Fixed
from sapwood.controllers.goodput import Goodput
from sapwood.core.sampling import Sampling
from sapwood.engine.cost_model import CostModel
from sapwood.engine.outputs import Step
from sapwood.estimators.raw import Raw
from sapwood.policies.beam import Beam
from sapwood.policies.best import Best
from sapwood.recipe import Recipe
from sapwood.verifiers.match import Match
from tests.helpers.round_toy import Guesses, RoundToy
from tests.helpers.scheduler_harness import Stage, alone, ended, tokens_of

CHEAP = CostModel([1, 1024], [0], [[1.0, 2.0]])
STEEP = CostModel([1, 1024], [0], [[1.0, 1024.0]])  # a row costs a pass: trees do not pay


def fixed(nodes: int = 5, depth: int = 3) -> Recipe:
    return Recipe(Guesses(), Beam(beam=2, estimator=Raw()), Match(), Fixed(nodes, depth, 2))


def priced() -> Recipe:
    return Recipe(Guesses(), Best(), Match(), Goodput(nodes=7, depth=4, width=3, pause=4))


def sampling_of(rng: np.random.Generator) -> Sampling:
    """Greedy, drawn, or with a penalty, which a device cannot apply."""
    return Sampling(
        temperature=float(rng.choice([0.0, 1.0, 0.7])),
        repetition_penalty=float(rng.choice([1.0] * 7 + [1.3])),
        max_tokens=int(rng.integers(1, 30)),
        stop_ids=(2,) if rng.random() < 0.3 else (),
        seed=int(rng.integers(100)),
    )


@pytest.mark.parametrize("recipe", ["fixed", "priced", "steep"])
@pytest.mark.parametrize("memory", [None, 200])
@settings(max_examples=12)
@given(seed=st.integers(0, 10_000))
def test_texts_are_those_of_single_requests(recipe: str, memory: int | None, seed: int) -> None:
    rng = np.random.default_rng(seed)
    curve = STEEP if recipe == "steep" else CHEAP
    target = RoundToy("target", vocab=3, context=512, curve=curve)
    target.failing_rounds = set(rng.integers(0, 30, 2).tolist())
    if memory is not None:
        target.memory.limit(memory)
    own = fixed() if recipe == "fixed" else priced()
    cost = CostModel.from_json(curve.to_json())
    stage = Stage(target, own, cost, max_requests=int(rng.integers(2, 9)))
    cancelled = []
    for _ in range(10):
        prompt = rng.integers(0, 3, int(rng.integers(1, 40))).tolist()
        stage.ask(prompt, sampling_of(rng))
        stage.run(int(rng.integers(0, 9)))
        if rng.random() < 0.2:
            cancelled.append(stage.requests[-1])
            cancelled[-1].cancel()
    stage.run()
    for request in stage.requests:
        if request in cancelled and not ended(stage.steps[request]):
            continue
        expected = alone(target, "plain", request.prompt, request.sampling)
        assert tokens_of(stage.steps[request]) == expected
    assert target.memory.used == 0


def ask_some(stage: Stage, count: int = 4, tokens: int = 40) -> None:
    for number in range(count):
        stage.ask([0, 1, number % 3, 2], Sampling(max_tokens=tokens))


def test_a_round_is_launched_before_the_last_one_is_read() -> None:
    target = RoundToy("target", vocab=3)
    stage = Stage(target, fixed())
    ask_some(stage)
    for _ in range(4):
        stage.scheduler.step()
    assert len(target.rounds) > 2
    assert target.rounds[-2].was_read
    assert not target.rounds[-1].was_read
    stage.run()
    assert any(result.verdict.accepted for one in target.rounds for result in one.results)


def test_one_request_alone_has_rounds_of_its_own() -> None:
    target = RoundToy("target", vocab=3)
    stage = Stage(target, fixed())
    ask_some(stage, count=1)
    stage.run()
    assert not target.rounds


def test_a_request_with_a_penalty_keeps_all_from_rounds_on_the_device() -> None:
    target = RoundToy("target", vocab=3)
    stage = Stage(target, fixed())
    ask_some(stage, count=2)
    stage.ask([0, 1], Sampling(max_tokens=40, repetition_penalty=1.3))
    stage.run(12)
    assert not target.rounds
    stage.run()
    for request in stage.requests:
        expected = alone(target, "plain", request.prompt, request.sampling)
        assert tokens_of(stage.steps[request]) == expected


def test_requests_of_two_engines_share_no_round() -> None:
    target = RoundToy("target", vocab=3)
    stage = Stage(target, fixed())
    for tenant in ("one", "two"):
        stage.ask([0, 1, 2], Sampling(max_tokens=20), tenant=tenant)
    stage.run()
    assert not target.rounds
    for request in stage.requests:
        expected = alone(target, "plain", request.prompt, request.sampling)
        assert tokens_of(stage.steps[request]) == expected


def test_rounds_that_do_not_fit_are_run_apart_and_seldom_tried() -> None:
    target = RoundToy("target", vocab=3)
    target.refuses = True
    stage = Stage(target, fixed())
    ask_some(stage)
    stage.run()
    assert not target.rounds
    for request in stage.requests:
        expected = alone(target, "plain", request.prompt, request.sampling)
        assert tokens_of(stage.steps[request]) == expected


def test_priced_drafting_rests_where_rounds_do_not_fit() -> None:
    """Trees that come to the host before their pass cost more there than they bring."""
    target = RoundToy("target", vocab=3)
    target.refuses = True
    stage = Stage(target, priced(), CostModel.from_json(CHEAP.to_json()))
    ask_some(stage, tokens=200)
    stage.run()
    steps = [step for steps in stage.steps.values() for step in steps if isinstance(step, Step)]
    together = [step.outcome for step in steps if step.outcome.shared is not None]
    assert not target.rounds
    assert sum(len(outcome.tree) > 1 for outcome in together) < len(together) / 20
    assert 4 * len(target.launched) > 0.9 * len(together)  # plain passes, launched ahead


def test_drafting_rests_where_rounds_are_slower_than_plain_decoding() -> None:
    target = RoundToy("target", vocab=3, curve=STEEP)
    stage = Stage(target, priced(), CostModel.from_json(STEEP.to_json()))
    ask_some(stage, tokens=300)
    stage.run(400)
    launched = len(target.launched)
    assert launched > 4 * len(target.rounds)


def test_drafting_goes_on_where_rounds_are_quicker() -> None:
    target = RoundToy("target", vocab=3, curve=CHEAP)
    stage = Stage(target, priced(), CostModel.from_json(CHEAP.to_json()))
    ask_some(stage, tokens=300)
    stage.run(400)
    assert len(target.rounds) > 2 * len(target.launched)


def test_the_policy_learns_from_rounds_on_the_device() -> None:
    target = RoundToy("target", vocab=3, curve=CHEAP)
    stage = Stage(target, priced(), CostModel.from_json(CHEAP.to_json()))
    ask_some(stage, tokens=200)
    stage.run(60)
    policy = stage.requests[0].engine.recipe.policy
    assert isinstance(policy, Best)
    assert policy.ahead.rounds > 3


def test_steps_tell_the_load_and_the_trees() -> None:
    target = RoundToy("target", vocab=3)
    stage = Stage(target, fixed())
    ask_some(stage)
    stage.run()
    steps = [step for steps in stage.steps.values() for step in steps if isinstance(step, Step)]
    ran = [step.outcome for step in steps if step.outcome.shared is not None]
    assert max(outcome.shared.trees for outcome in ran if outcome.shared is not None) == 4
    assert all(len(outcome.tree) == 6 for outcome in ran if outcome.asked)

"""Passes launched ahead of the host: the same texts, whatever happens while one is on its way."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sapwood.core.sampling import Sampling
from sapwood.drafters.lookup.suffix import Suffix
from sapwood.engine.cost_model import CostModel
from tests.helpers.launching_toy import LaunchingToy
from tests.helpers.scheduler_harness import Stage, alone, ended, tokens_of

DRAFTING = "suffix + best(stride=4) + match + goodput(nodes=12, depth=6, width=3, pause=4)"
STEEP = CostModel([1, 1024], [0], [[1.0, 1024.0]])  # a row costs a pass: trees do not pay


def sampling_of(rng: np.random.Generator) -> Sampling:
    """Greedy, drawn, or with a penalty, which a device cannot apply."""
    return Sampling(
        temperature=float(rng.choice([0.0, 1.0, 0.7])),
        repetition_penalty=float(rng.choice([1.0, 1.0, 1.0, 1.3])),
        max_tokens=int(rng.integers(1, 30)),
        stop_ids=(2,) if rng.random() < 0.3 else (),
        seed=int(rng.integers(100)),
    )


@pytest.mark.parametrize("recipe", ["plain", DRAFTING])
@pytest.mark.parametrize("memory", [None, 160, 4096])
@settings(max_examples=12)
@given(seed=st.integers(0, 10_000))
def test_texts_are_those_of_single_requests(recipe: str, memory: int | None, seed: int) -> None:
    rng = np.random.default_rng(seed)
    target = LaunchingToy("target", vocab=3, context=512, curve=STEEP)
    target.failing = set(rng.integers(0, 40, 2).tolist())
    if memory is not None:
        target.memory.limit(memory)
    cost = CostModel.from_json(STEEP.to_json())
    stage = Stage(target, recipe, cost, max_requests=int(rng.integers(2, 9)))
    cancelled = []
    for _ in range(10):
        prompt = rng.integers(0, 3, int(rng.integers(1, 40))).tolist()
        stage.ask(prompt, sampling_of(rng), recipe="plain" if rng.random() < 0.2 else "")
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


def test_a_pass_is_launched_before_the_last_one_is_read() -> None:
    target = LaunchingToy("target", vocab=3)
    stage = Stage(target, "plain")
    for number in range(4):
        stage.ask([0, 1, number % 3], Sampling(max_tokens=20))
    stage.scheduler.step()
    stage.scheduler.step()
    waiting = [one for one in target.launched if not one.read]
    stage.scheduler.step()
    assert len(target.launched) > 1
    assert waiting
    assert waiting[-1].read
    assert not target.launched[-1].read
    stage.run()
    # the last token of a text is known to be the last: no row is launched behind it
    assert sum(len(one.tokens) for one in target.launched) <= 4 * 20


def test_a_row_behind_the_end_of_a_text_is_dropped() -> None:
    target = LaunchingToy("target", vocab=3)
    stage = Stage(target, "plain")
    sampling = Sampling(max_tokens=50, stop_ids=(1,))
    for number in range(3):
        stage.ask([number, 2, 2], sampling)
    stage.run()
    for request in stage.requests:
        steps = stage.steps[request]
        assert tokens_of(steps) == alone(target, "plain", request.prompt, sampling)
        assert sum(1 for step in steps if getattr(step, "done", False)) == 1
    assert target.memory.used == 0


def test_requests_that_draft_are_not_run_ahead() -> None:
    target = LaunchingToy("target", vocab=3)
    stage = Stage(target, "ngram + chain + match + fixed(nodes=3, depth=3, width=1)")
    for number in range(4):
        stage.ask([0, 1, number % 3, 0, 1], Sampling(max_tokens=20))
    stage.run()
    assert not target.launched


def test_a_failed_launch_is_run_apart() -> None:
    target = LaunchingToy("target", vocab=3)
    target.failing = {3}
    stage = Stage(target, "plain")
    for number in range(4):
        stage.ask([0, 1, number % 3], Sampling(max_tokens=20))
    stage.run()
    assert not target.failing
    assert len(target.launched) > 4  # and then ahead again
    for request in stage.requests:
        expected = alone(target, "plain", request.prompt, request.sampling)
        assert tokens_of(stage.steps[request]) == expected


def test_a_drafter_observes_the_rounds_of_a_rest_before_it_drafts_again() -> None:
    """Texts that repeat themselves are found by look-up after a rest as without one."""
    target = LaunchingToy("target", vocab=3, curve=STEEP)
    stage = Stage(target, DRAFTING, CostModel.from_json(STEEP.to_json()))
    for number in range(3):
        stage.ask([0, 1, number, 2], Sampling(max_tokens=150))
    for _ in range(200):
        stage.scheduler.step()
        if any(len(request.running.rested) > 2 for request in stage.pool.running):
            break
    assert len(stage.pool.running) == 3
    assert any(request.running.rested for request in stage.pool.running)
    for request in stage.pool.running:
        decoder = request.running
        decoder.catch_up()
        drafter = decoder.drafter
        assert isinstance(drafter, Suffix)
        assert drafter.output_ == [*request.prompt, *request.output_tokens]
    stage.run()
    for request in stage.requests:
        expected = alone(target, "plain", request.prompt, request.sampling)
        assert tokens_of(stage.steps[request]) == expected

"""Requests whose rounds run on the device say what plain decoding says."""

from collections.abc import Iterator

import pytest

from sapwood.controllers.fixed import Fixed
from sapwood.controllers.goodput import Goodput
from sapwood.core.sampling import Sampling
from sapwood.drafters.compose.merge import Merge
from sapwood.drafters.heads.eagle3 import Eagle3
from sapwood.drafters.lookup.suffix import Suffix
from sapwood.engine.cost_model import CostModel
from sapwood.engine.outputs import Step
from sapwood.estimators.raw import Raw
from sapwood.policies.beam import Beam
from sapwood.policies.best import Best
from sapwood.recipe import Recipe
from sapwood.verifiers.match import Match
from tests.helpers import tiny_models
from tests.helpers.eagle_heads import tame_head
from tests.helpers.engine_rounds import make_text
from tests.helpers.scheduler_harness import Stage, alone, ended, tokens_of
from tests.helpers.triton_mode import DEVICE, few_programs, require

require()

from sapwood.backends.torch.cuda.draft.tree_builder import CudaTreeBuilder
from sapwood.backends.torch.cuda.network import CudaNetwork
from sapwood.backends.torch.cuda.rounds.device_rounds import DeviceRounds
from tests.helpers.round_target import CountingLauncher, RoundTarget

PROMPTS = [make_text(4, 1), make_text(6, 2)]


@pytest.fixture(autouse=True, scope="module")
def wide_tiles() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        few_programs(patch)
        # tiny shapes, which are captured when they come up
        patch.setattr(DeviceRounds, "_captured", lambda *_: True)
        patch.setattr(CudaNetwork, "is_captured", lambda *_: True)
        yield


@pytest.fixture(scope="module")
def target() -> RoundTarget:
    return RoundTarget(tiny_models.make("llama").to(DEVICE), "tiny")


def recipes() -> dict[str, Recipe]:
    """A head alone with wide trees, and one beside look-ups whose trees follow prices."""
    head = tame_head()
    beam = Beam(beam=2, estimator=Raw())
    return {
        "eagle3": Recipe(Eagle3(head=head), beam, Match(), Fixed(nodes=7, depth=2, width=7)),
        "merge": Recipe(
            Merge(drafters=[Suffix(), Eagle3(head=head)]),
            Best(),
            Match(),
            Goodput(nodes=7, depth=2, width=7, pause=2),
        ),
    }


def launcher_of(stage: Stage) -> CountingLauncher:
    """The launcher of the only engine's head."""
    [request, *_] = stage.requests
    drafter = request.engine.recipe.drafter
    head = drafter.drafters[-1] if isinstance(drafter, Merge) else drafter
    assert isinstance(head, Eagle3)
    assert isinstance(head.builder, CudaTreeBuilder)
    launcher = head.builder.rounds
    assert isinstance(launcher, CountingLauncher)
    return launcher


@pytest.mark.parametrize(
    ("name", "temperature"), [("eagle3", 0.9), ("eagle3", 0.0), ("merge", 0.0)]
)
def test_texts_are_those_of_plain_decoding(
    target: RoundTarget, name: str, temperature: float
) -> None:
    stage = Stage(target, recipes()[name], CostModel([1, 1024], [0], [[1.0, 1.0]]))
    for number, prompt in enumerate(PROMPTS):
        sampling = Sampling(max_tokens=5 + number, temperature=temperature, seed=number)
        stage.ask(prompt, sampling)
        stage.run(2)
    stage.run()
    for request in stage.requests:
        expected = alone(target, "plain", request.prompt, request.sampling)
        assert tokens_of(stage.steps[request]) == expected
    launched = launcher_of(stage).launched
    assert any(one.before >= 0 for batch in launched for one in batch.requests)
    steps = [step for steps in stage.steps.values() for step in steps if isinstance(step, Step)]
    assert any(len(step.outcome.verdict.path) > 1 for step in steps)
    assert target.memory.used == 0


def test_a_prompt_is_read_in_the_pass_of_a_round(target: RoundTarget) -> None:
    stage = Stage(target, recipes()["eagle3"])
    for prompt in PROMPTS:
        stage.ask(prompt, Sampling(max_tokens=6))
    stage.run(4)
    stage.ask(make_text(5, 4), Sampling(max_tokens=3, temperature=0.8, seed=2))
    stage.run()
    for request in stage.requests:
        expected = alone(target, "plain", request.prompt, request.sampling)
        assert tokens_of(stage.steps[request]) == expected
    assert launcher_of(stage).prompts == 4
    assert target.memory.used == 0


def test_a_request_may_end_or_be_cancelled_while_a_round_is_on_its_way(target: RoundTarget) -> None:
    stage = Stage(target, recipes()["eagle3"])
    long = Sampling(max_tokens=5)
    kept = stage.ask(PROMPTS[0], long)
    brief = stage.ask(PROMPTS[1], Sampling(max_tokens=2))
    dropped = stage.ask(PROMPTS[1], long)
    stage.run(4)
    dropped.cancel()
    stage.run()
    for request in (kept, brief):
        expected = alone(target, "plain", request.prompt, request.sampling)
        assert tokens_of(stage.steps[request]) == expected
    assert not ended(stage.steps[dropped])
    assert target.memory.used == 0


def test_captured_steps_outlast_a_pass_in_the_other_buffers(target: RoundTarget) -> None:
    """A request alone prelaunches its passes into a second set of buffers."""
    stage = Stage(target, recipes()["eagle3"])
    for prompt in PROMPTS:
        stage.ask(prompt, Sampling(max_tokens=4))
    stage.run()
    rounds, network = launcher_of(stage).rounds, target.fused
    captured = set(rounds.steps)
    twin = network.buffer_sets[0].twin(network.model)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(network, "buffers", twin)
        rounds.check_steps()
    assert captured
    assert set(rounds.steps) == captured

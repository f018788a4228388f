"""Requests that share passes of the CUDA path, with and without trees, say what single ones say."""

from typing import Any

import pytest
import torch

from sapwood.controllers.fixed import Fixed
from sapwood.controllers.goodput import Goodput
from sapwood.core.sampling import Sampling
from sapwood.drafters.heads.eagle3 import Eagle3
from sapwood.engine.cost_model import CostModel
from sapwood.engine.outputs import Step
from sapwood.estimators.raw import Raw
from sapwood.policies.beam import Beam
from sapwood.recipe import Recipe
from sapwood.verifiers.match import Match
from tests.helpers import tiny_models
from tests.helpers.eagle_heads import merged_with_lookup, tame_head
from tests.helpers.engine_rounds import make_text
from tests.helpers.scheduler_harness import Stage, alone, tokens_of
from tests.helpers.triton_mode import DEVICE, require

require()

from sapwood.backends.torch.cuda.backend import CudaBackend
from sapwood.backends.torch.cuda.draft.tree_builder import CudaTreeBuilder

pytestmark = pytest.mark.usefixtures("wide_tiles")

PROMPTS = [make_text(5, 1), [*make_text(3, 3)] * 2]


class FusedTarget(CudaBackend):
    """The CUDA path, whose trees are drafted by the steps in torch where there is no GPU."""

    def tree_builder(self, head: Any, embedding: torch.Tensor) -> CudaTreeBuilder:
        return CudaTreeBuilder(head, embedding)


@pytest.fixture(scope="module")
def target() -> FusedTarget:
    return FusedTarget(tiny_models.make("llama").to(DEVICE), "tiny")


def recipes() -> dict[str, Recipe]:
    """A head alone, and one beside look-ups."""
    shape = Beam(beam=3, estimator=Raw())
    head = tame_head()
    return {
        "eagle3": Recipe(Eagle3(head=head), shape, Match(), Fixed(nodes=5, depth=2, width=3)),
        "merge": Recipe(
            merged_with_lookup(head), shape, Match(), Goodput(nodes=5, depth=2, width=3)
        ),
    }


@pytest.mark.parametrize(("name", "temperature"), [("eagle3", 0.9), ("merge", 0.0)])
def test_texts_are_those_of_plain_decoding(
    target: FusedTarget, name: str, temperature: float
) -> None:
    stage = Stage(target, recipes()[name], CostModel([1, 1024], [0], [[1.0, 1.0]]))
    for number, prompt in enumerate(PROMPTS):
        sampling = Sampling(max_tokens=3 + number, temperature=temperature, seed=number)
        stage.ask(prompt, sampling)
        stage.run(1)
    stage.run()
    for request in stage.requests:
        expected = alone(target, "plain", request.prompt, request.sampling)
        assert tokens_of(stage.steps[request]) == expected
    steps = [step for steps in stage.steps.values() for step in steps if isinstance(step, Step)]
    assert any(len(step.outcome.tree) > 1 for step in steps)
    assert target.memory.used == 0

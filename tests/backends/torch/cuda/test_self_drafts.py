"""Variants of a target that draft in its KV slots leave its text as it is."""

from typing import Any

import pytest
import torch

from sapwood.core.protocols import TreeInput
from sapwood.core.sampling import Sampling
from sapwood.core.tree import Tree
from sapwood.engine.outputs import Step
from sapwood.recipes import resolve
from tests.helpers import tiny_models
from tests.helpers.engine_rounds import make_text
from tests.helpers.scheduler_harness import Stage, alone, tokens_of
from tests.helpers.triton_mode import DEVICE, require

require()

from sapwood.backends.torch.cuda.backend import CudaBackend

pytestmark = pytest.mark.usefixtures("wide_tiles")

BRANCHES = "self-skip(share=0.25) + beam(beam=2) + match + fixed(nodes=12, depth=2, width=6)"


@pytest.fixture(scope="module")
def target() -> CudaBackend:
    return CudaBackend(tiny_models.make("llama").to(DEVICE), "tiny")


def test_a_path_that_waits_to_be_moved_is_moved_before_a_draft_is_written(
    target: CudaBackend,
) -> None:
    variant: Any = target.variant(skip=(1,))
    session: Any = target.open(make_text(6, 1))
    tree = Tree(3)
    for token in (4, 5, 6):
        tree.add(0, token, 0.3, sampled=True)
    target.score([TreeInput(session, tree)])
    index = session.sequence.index
    wanted = target.fused.pool.kept[:, index, session.length + 3].clone()
    session.commit((0, 3))  # the last of three children lies behind the others
    shared: Any = variant.capabilities.share_session(session)
    draft = Tree(7)
    draft.add(0, 8, 0.5, sampled=True)
    variant.score([TreeInput(shared, draft)])
    assert torch.equal(target.fused.pool.kept[:, index, session.length - 1], wanted)


def test_branches_of_a_self_draft_leave_the_text_as_it_is(target: CudaBackend) -> None:
    stage = Stage(target, resolve(BRANCHES))
    sampling = Sampling(max_tokens=16)
    stage.ask(make_text(5, 4), sampling)
    stage.run()
    [request] = stage.requests
    steps = [step for step in stage.steps[request] if isinstance(step, Step)]
    paths = [step.outcome.verdict.path for step in steps]
    assert any(path != tuple(range(len(path))) for path in paths)  # nodes that are moved
    assert tokens_of(stage.steps[request]) == alone(target, "plain", request.prompt, sampling)

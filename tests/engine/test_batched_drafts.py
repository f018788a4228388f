"""Requests of one pass whose trees a device drafts together."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from sapwood.backends.torch.cuda.draft.batch_buffers import DraftedTree
from sapwood.backends.torch.cuda.draft.tree_builder import CudaTreeBuilder
from sapwood.controllers.fixed import Fixed
from sapwood.core.protocols import RequestContext
from sapwood.core.sampling import Sampling
from sapwood.core.tree import Tree
from sapwood.core.types import NO_NODES, Budget
from sapwood.core.whole_tree import TreeJob
from sapwood.drafters.heads.eagle3 import Eagle3
from sapwood.engine.outputs import Step
from sapwood.estimators.raw import Raw
from sapwood.policies.beam import Beam
from sapwood.recipe import Recipe
from sapwood.recipes import resolve
from sapwood.verifiers.match import Match
from tests.helpers.eagle_heads import merged_with_lookup, tame_head
from tests.helpers.engine_rounds import make_text
from tests.helpers.scheduler_harness import Stage, tokens_of
from tests.helpers.whole_tree_targets import backends

PROMPTS = [make_text(7, 1), make_text(30, 2), [*make_text(6, 3)] * 4]
KINDS = {"eagle3": lambda head: Eagle3(head=head), "merge": merged_with_lookup}


def texts_of(recipe: Recipe, target: Any, **options: Any) -> tuple[Stage, list[list[int]]]:
    """The answers to all prompts at a time."""
    stage = Stage(target, recipe, **options)
    asked = [stage.ask(prompt, Sampling(max_tokens=9)) for prompt in PROMPTS]
    stage.run()
    return stage, [tokens_of(stage.steps[request]) for request in asked]


def recipe_of(drafter: Any) -> Recipe:
    return Recipe(drafter, Beam(beam=3, estimator=Raw()), Match(), Fixed(nodes=6, depth=3, width=3))


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of requests that were drafted together."""
    found: list[int] = []
    build = CudaTreeBuilder.build_batch

    def counted(builder: CudaTreeBuilder, jobs: Sequence[TreeJob]) -> list[Tree]:
        found.append(len(jobs))
        return build(builder, jobs)

    monkeypatch.setattr(CudaTreeBuilder, "build_batch", counted)
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_texts_are_those_of_plain_decoding(kind: str, batches: list[int]) -> None:
    steps, whole = backends()
    stage, found = texts_of(recipe_of(KINDS[kind](tame_head())), whole)
    _, wanted = texts_of(resolve("plain"), steps)
    assert found == wanted
    assert max(batches) == len(PROMPTS)
    made = [step for steps in stage.steps.values() for step in steps if isinstance(step, Step)]
    trees = [step.outcome.grown for step in made]
    assert sum(isinstance(tree, DraftedTree) for tree in trees) == sum(batches)


def test_trees_that_cannot_be_drafted_together_are_drafted_one_by_one(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(builder: CudaTreeBuilder, jobs: Sequence[TreeJob]) -> list[Tree]:
        raise ValueError("out of order")

    steps, whole = backends()
    recipe = recipe_of(Eagle3(head=tame_head()))
    monkeypatch.setattr(CudaTreeBuilder, "build_batch", fail)
    stage, found = texts_of(recipe, whole)
    assert found == texts_of(resolve("plain"), steps)[1]
    assert "could not be drafted together" in caplog.text
    assert sum(one.nodes for one in stage.rounds) > 0


def test_a_request_that_fails_alone_does_not_fail_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    build = CudaTreeBuilder.build_batch

    def fail(builder: CudaTreeBuilder, jobs: Sequence[TreeJob]) -> list[Tree]:
        if any(job.committed > 25 for job in jobs):
            raise ValueError("out of order")
        return build(builder, jobs)

    def grow(builder: CudaTreeBuilder, *args: Any, **options: Any) -> Tree:
        if args[3] > 25:
            raise ValueError("out of order")
        return single(builder, *args, **options)

    single = CudaTreeBuilder.grow
    monkeypatch.setattr(CudaTreeBuilder, "build_batch", fail)
    monkeypatch.setattr(CudaTreeBuilder, "grow", grow)
    steps, whole = backends()
    stage = Stage(whole, recipe_of(Eagle3(head=tame_head())))
    asked = [stage.ask(prompt, Sampling(max_tokens=9)) for prompt in PROMPTS]
    stage.run()
    wanted = texts_of(resolve("plain"), steps)[1]
    assert isinstance(stage.steps[asked[1]][-1], ValueError)
    assert tokens_of(stage.steps[asked[0]]) == wanted[0]


def test_a_request_alone_is_drafted_by_the_single_draft(batches: list[int]) -> None:
    _, whole = backends()
    stage = Stage(whole, recipe_of(Eagle3(head=tame_head())))
    stage.ask(PROMPTS[0], Sampling(max_tokens=9))
    stage.run()
    assert not batches


def test_text_that_waits_for_a_draft_is_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sapwood.drafters.heads.eagle3.PIECES", 2)
    steps, whole = backends()
    recipe = Recipe(
        Eagle3(head=tame_head()), Beam(beam=3, estimator=Raw()), Match(), Seldom(nodes=6, depth=3)
    )
    stage, found = texts_of(recipe, whole)
    assert found == texts_of(resolve("plain"), steps)[1]
    assert sum(one.nodes for one in stage.rounds) > 0


@dataclass
class Seldom(Fixed):
    """A fixed budget in every fifth round, none in the others."""

    def reset(self, request: RequestContext) -> None:
        self.rounds_ = 0

    def budget(self) -> Budget:
        self.rounds_ += 1
        return NO_NODES if self.rounds_ % 5 else super().budget()

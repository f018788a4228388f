"""Runs in the stages of a pipeline: plain decoding's text, cancelled runs, counted waste."""

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from sapwood.backends.toy import ToyBackend, ToyOutput
from sapwood.controllers.fixed import Fixed
from sapwood.core.overlap import OverlapGauge
from sapwood.core.pipeline import Window
from sapwood.core.protocols import Policy, TargetOutput, TreeInput
from sapwood.core.rng import KeyedRng
from sapwood.core.sampling import Sampling
from sapwood.core.target_probs import PathProbs
from sapwood.core.tree import CAPACITY, ROOT, Tree
from sapwood.core.types import Outcome
from sapwood.drafters.compose.draft_model import DraftModel
from sapwood.drafters.lookup.ngram import Ngram
from sapwood.engine.generate import stream
from sapwood.engine.loop import Engine
from sapwood.engine.pipeline import PipelineDecoder, Run, can_pipeline
from sapwood.engine.stages import RunOutputs, WholeStages
from sapwood.errors import SapwoodError
from sapwood.policies.chain import Chain
from sapwood.policies.pipedec import PipeDec
from sapwood.policies.pipeinfer import PipeInfer
from sapwood.recipe import Recipe
from sapwood.testing import law_error
from sapwood.verifiers.match import Match
from sapwood.verifiers.naive import Naive

PROMPT = [0, 1, 2]
PLAIN = Recipe(Ngram(), Chain(), Match(), Fixed(nodes=0))
POLICIES: list[Policy] = [
    PipeInfer(stages=3, batch=2),
    PipeInfer(stages=2, accept=0.3, split=0.3, recovery=0.1, decay=0.1),
    PipeDec(beam=2, children=2, stages=3),
]
each_policy = pytest.mark.parametrize("policy", POLICIES, ids=str)


@pytest.fixture(autouse=True)
def _always(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pipeline in every round, whether it pays or not."""
    monkeypatch.setattr(OverlapGauge, "add", lambda self, tokens, seconds: None)


def recipe(policy: Policy, draft: str = "draft", nodes: int = 8) -> Recipe:
    return Recipe(DraftModel(model=ToyBackend(draft)), policy, Match(), Fixed(nodes, nodes, 2))


def outcomes(made: Recipe, sampling: Sampling, seed: int = 0, target: Any = None) -> list[Outcome]:
    engine = Engine(target or ToyBackend("a", context=256), made)
    return list(engine.rounds(PROMPT, sampling, KeyedRng(seed)))


def text_of(made: Recipe, sampling: Sampling, seed: int = 0) -> list[int]:
    rounds = outcomes(made, sampling, seed)
    return [token for outcome in rounds for token in outcome.tokens][: sampling.max_tokens]


SAMPLINGS = [
    Sampling(max_tokens=40),
    Sampling(temperature=0.9, max_tokens=40),
    Sampling(temperature=1.0, repetition_penalty=1.4, max_tokens=40),
]


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=range(3))
@pytest.mark.parametrize("draft", ["a", "draft"])
@each_policy
def test_the_text_is_plain_decodings(policy: Policy, draft: str, sampling: Sampling) -> None:
    for seed in range(4):
        assert text_of(recipe(policy, draft), sampling, seed) == text_of(PLAIN, sampling, seed)


@each_policy
def test_the_law_is_exact_over_two_windows(policy: Policy) -> None:
    assert law_error(recipe(policy, nodes=3), ToyBackend("a"), rounds=2, horizon=3) <= 1e-12


# ---------------------------------------------------------------------------------------- mutants
def differs(made: Recipe) -> bool:
    sampling = Sampling(temperature=1.0, max_tokens=30)
    return any(text_of(made, sampling, seed) != text_of(PLAIN, sampling, seed) for seed in range(4))


def test_a_position_that_is_off_by_one_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = PathProbs.draw
    monkeypatch.setattr(
        PathProbs,
        "draw",
        lambda self, node, position, rng: draw(self, node, position + 1, rng),
    )
    assert text_of(recipe(POLICIES[0]), SAMPLINGS[1]) != [
        *_plain_without_patch(monkeypatch, SAMPLINGS[1])
    ]


def _plain_without_patch(monkeypatch: pytest.MonkeyPatch, sampling: Sampling) -> list[int]:
    monkeypatch.undo()
    return text_of(PLAIN, sampling)


def test_following_a_branch_that_is_not_the_targets_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    child = Tree.child

    def first(self: Tree, node: int, token: int) -> int | None:
        return next(iter(self.children(node)), None) if len(self) > 1 else child(self, node, token)

    def follow(self: PipelineDecoder, window: Window, scores: Any) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Tree, "child", first)
            return followed(self, window, scores)

    followed = PipelineDecoder._follow
    monkeypatch.setattr(PipelineDecoder, "_follow", follow)
    assert differs(recipe(PipeInfer(stages=3, batch=2)))


# --------------------------------------------------------------------------------- what is counted
@each_policy
def test_runs_are_passes_and_what_was_not_scored_is_discarded(policy: Policy) -> None:
    target = ToyBackend("a", context=256)
    rounds = outcomes(recipe(policy), Sampling(max_tokens=60), target=target)
    assert sum(outcome.passes for outcome in rounds) == target.passes
    for outcome in rounds:
        assert outcome.discarded == len(outcome.grown) - len(outcome.tree)
    assert sum(outcome.discarded for outcome in rounds) > 0
    steps = list(stream(Engine(target, recipe(policy)), PROMPT, Sampling(max_tokens=60)))
    stats = steps[-1].stats
    assert stats is not None
    assert stats.passes == sum(step.outcome.passes for step in steps) > len(steps)
    assert stats.waste > 0


def test_a_perfect_draft_fills_the_pipeline() -> None:
    made = recipe(PipeInfer(stages=3, batch=1, recovery=0.0), "a", nodes=24)
    first = outcomes(made, Sampling(max_tokens=100))[0]
    assert first.verdict.accepted == 24
    assert first.passes == 25  # one run a token, none cancelled


def test_a_window_grows_until_its_tree_is_full_and_no_further() -> None:
    made = recipe(PipeDec(beam=6, children=3, stages=2), "a", nodes=CAPACITY - 1)
    target = ToyBackend("a", context=512)
    first = outcomes(made, Sampling(max_tokens=400), target=target)[0]
    assert CAPACITY - 3 < len(first.grown) <= CAPACITY


def test_runs_beside_the_targets_token_are_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    dropped = list[int]()
    monkeypatch.setattr(WholeStages, "drop", lambda self, run, stage: dropped.append(stage))
    outcomes(recipe(PipeDec(beam=3, children=3, stages=4), nodes=40), Sampling(max_tokens=60))
    sent = outcomes(recipe(PipeInfer(stages=4, split=0.0, recovery=0.0)), Sampling(max_tokens=60))
    assert all(0 < stage < 4 for stage in dropped)
    assert any(outcome.discarded for outcome in sent)


# ---------------------------------------------------------------------------------- the policies
def window(**given: Any) -> Window:
    tree = Tree(0)
    return Window(tree, Fixed(9, 9, 3).budget(), **given)


def test_cutoffs_rise_with_runs_that_are_out_and_fall_with_misses() -> None:
    policy = PipeInfer(accept=0.2, split=0.5, recovery=0.3, decay=0.1)
    assert policy.cutoffs(window(ticks=1)) == pytest.approx((0.2, 0.5))
    assert policy.cutoffs(window(ticks=3, misses=2)) == pytest.approx((0.6, 0.9))
    flooded = window(ticks=4)
    assert policy.grow(flooded, 1) == []


def test_a_token_below_the_cutoff_waits_until_the_cutoff_falls() -> None:
    policy = PipeInfer(accept=0.2, recovery=0.3, branches=2)
    held = window(ticks=2)
    node, _ = held.tree.extend(ROOT, [1, 2], [0.4, 0.3])
    held.tree.close(ROOT)
    assert policy.choose(held, 1) == []
    held.ticks = 1
    assert policy.choose(held, 3) == [node]


def test_a_sequence_grows_while_its_own_cutoff_can_be_met() -> None:
    policy = PipeInfer(accept=0.2, split=0.8, recovery=0.3)
    assert policy.grow(window(ticks=2), 1) == [(ROOT, policy.branches)]  # no second child, but one


def test_the_first_window_has_no_misses_behind_it() -> None:
    policy = PipeInfer(stages=2)
    engine = Engine(ToyBackend("a"), recipe(policy))
    decoder = PipelineDecoder(engine, PROMPT, Sampling(), KeyedRng(0))
    assert decoder.misses == 0
    decoder.close()


def test_misses_are_windows_in_a_row_without_an_accepted_token() -> None:
    engine = Engine(ToyBackend("a", context=256), recipe(PipeInfer(stages=2)))
    decoder = PipelineDecoder(engine, PROMPT, Sampling(max_tokens=60), KeyedRng(0))
    wanted = 0
    with ThreadPoolExecutor(3) as workers:
        for _ in range(12):
            accepted = decoder.round(workers).verdict.accepted
            wanted = 0 if accepted else wanted + 1
            assert decoder.misses == wanted
    decoder.close()


class ThreeStages:
    """Stages that only name the states which leave the first one."""

    parallel = False
    stages = 3

    def step(self, run: Any, stage: int) -> None:
        """Nothing is computed."""

    def states(self, run: Any) -> list[str]:
        return ["a state"]


def test_states_are_shown_when_a_run_leaves_the_first_stage() -> None:
    engine = Engine(ToyBackend("a"), recipe(PipeInfer(stages=3)))
    decoder = PipelineDecoder(engine, PROMPT, Sampling(), KeyedRng(0))
    decoder.runner, decoder.exits = ThreeStages(), True  # type: ignore[assignment]
    shown, run = window(), Run(0, 1, None)
    with ThreadPoolExecutor(1) as workers:
        for left in ([ROOT], [], []):
            decoder._tick(shown, [run], workers)
            assert shown.left_first == left
    assert shown.tree.states[ROOT] == "a state"
    decoder.close()


class RowCounter(ToyBackend):
    """A toy that counts the rows that it scores."""

    rows = 0

    def score(self, work: Sequence[TreeInput], chunks: Sequence[Any] = ()) -> list[TargetOutput]:
        self.rows += sum(len(job.tree) - job.since for job in work)
        return super().score(work, chunks)


def test_no_node_is_scored_twice() -> None:
    target = RowCounter("a", context=256)
    made = recipe(PipeInfer(stages=3, batch=1), "a")  # several runs in a window
    rounds = outcomes(made, Sampling(max_tokens=40), target=target)
    assert max(outcome.passes for outcome in rounds) > 2
    assert target.rows <= sum(len(outcome.tree) + outcome.discarded for outcome in rounds)


def test_scores_of_a_window_leave_cancelled_nodes_out() -> None:
    found = RunOutputs()
    logs = np.log(np.array([[0.2, 0.8], [0.7, 0.3]]))
    found.add(0, 1, ToyOutput(logs[:1]))
    found.add(2, 3, ToyOutput(logs[1:]))  # node 1 was cancelled
    assert found.argmax().tolist() == [1, -1, 0]
    tokens, best = found.topk(1)
    assert tokens.tolist() == [[1], [-1], [0]]
    assert best[:, 0] == pytest.approx([math.log(0.8), -math.inf, math.log(0.7)])
    assert [found.knows(node) for node in range(3)] == [True, False, True]
    assert found.logits(2) == pytest.approx(logs[1])
    with pytest.raises(ValueError, match="node 1 was cancelled"):
        found.logits(1)


def test_nodes_beside_the_tip_are_not_alive() -> None:
    made = window()
    left, right = made.tree.extend(ROOT, [1, 2], [0.5, 0.4])
    low = made.tree.add(right, 0, 1.0)
    made.tip = right
    assert [made.alive(node) for node in (left, right, low)] == [False, True, True]


def test_pipedec_sends_the_best_nodes_of_a_level() -> None:
    made = window()
    nodes = made.tree.extend(ROOT, [1, 2, 0], [0.2, 0.5, 0.3])
    assert PipeDec(beam=2).choose(made, 1) == nodes[1:]


# ------------------------------------------------------------------------------------ when it runs
def test_it_runs_only_where_tokens_are_the_targets_own() -> None:
    def able(made: Recipe, sampling: Sampling) -> bool:
        engine = Engine(ToyBackend("a"), made)
        return can_pipeline(engine, engine.recipe, sampling)

    greedy = Sampling()
    assert able(recipe(PipeInfer()), greedy)
    assert not able(recipe(Chain()), greedy)
    naive = Recipe(DraftModel(model=ToyBackend("b")), PipeInfer(), Naive(), Fixed(3, 3, 1))
    assert not able(naive, greedy)
    assert not able(Recipe(Ngram(), PipeInfer(), Match(), Fixed(3, 3, 1)), greedy)
    assert not able(recipe(PipeInfer()), Sampling(prediction=[1, 2]))


class BrokenStages(ToyBackend):
    """A target whose pass fails after a while."""

    def score(self, work: Sequence[TreeInput], chunks: Any = ()) -> Any:
        if self.passes > 3:
            raise SapwoodError("the target is gone")
        return super().score(work, chunks)


def test_an_error_of_a_stage_reaches_the_caller() -> None:
    with pytest.raises(SapwoodError, match="target is gone"):
        outcomes(recipe(PipeInfer()), Sampling(max_tokens=60), target=BrokenStages("a"))


def test_a_request_may_be_left_in_the_middle() -> None:
    target = ToyBackend("a")
    rounds = Engine(target, recipe(PipeDec())).rounds(PROMPT, Sampling(max_tokens=60), KeyedRng(0))
    next(rounds)
    assert target.memory.used > 0
    rounds.close()
    assert target.memory.used == 0

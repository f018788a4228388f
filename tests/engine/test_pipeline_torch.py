"""A torch model in stages, each in a thread: the whole model's scores, and plain decoding's text."""

from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sapwood.backends.torch.stages import TorchStages, stage_bounds
from sapwood.controllers.fixed import Fixed
from sapwood.core.overlap import OverlapGauge
from sapwood.core.protocols import Frontier, Policy, TreeInput
from sapwood.core.rng import KeyedRng, Rng
from sapwood.core.sampling import Sampling
from sapwood.core.tree import ROOT, Tree
from sapwood.drafters.compose.draft_model import DraftModel
from sapwood.drafters.self.layer_exit import LayerExit
from sapwood.engine.loop import Engine
from sapwood.engine.pipeline import PipelineDecoder
from sapwood.policies.chain import Chain
from sapwood.policies.pipedec import PipeDec
from sapwood.policies.pipeinfer import PipeInfer
from sapwood.policies.ppsd import Ppsd
from sapwood.policies.predictive import Predictive
from sapwood.recipe import Recipe
from sapwood.verifiers.match import Match
from tests.helpers.self_draft_targets import PLAIN, TEXT, each_target, target

LENGTH = 4
PROMPTS = [TEXT[start : start + 8] for start in range(24)]


@pytest.fixture(autouse=True)
def _always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OverlapGauge, "add", lambda self, tokens, seconds: None)
    # another test may have asked this target for its queries
    monkeypatch.setattr(target("stock").network, "records", False)


def text(
    kind: str, recipe: Recipe, prompt: list[int], temperature: float = 0.0, length: int = LENGTH
) -> list[int]:
    sampling = Sampling(temperature=temperature, max_tokens=length)
    rounds = Engine(target(kind), recipe).rounds(prompt, sampling, KeyedRng(5))
    found = list[int]()
    for outcome in rounds:
        found += outcome.tokens
        if len(found) >= length:
            break
    rounds.close()
    return found[:length]


@pytest.mark.parametrize(
    "policy", [PipeInfer(batch=2, stages=3), PipeDec(beam=3, children=2)], ids=str
)
@pytest.mark.parametrize(
    ("kind", "prompts"), [("stock", 24), pytest.param("packed", 4, marks=pytest.mark.slow)]
)
def test_the_text_is_plain_decodings(kind: str, prompts: int, policy: Policy) -> None:
    # the target drafts for itself: long windows, and full stages
    recipe = Recipe(DraftModel(model=target("stock")), policy, Match(), Fixed(5, 5, 3))
    for prompt in PROMPTS[:prompts]:
        assert text(kind, recipe, prompt) == text(kind, PLAIN, prompt)
    assert text(kind, recipe, PROMPTS[0], 0.9) == text(kind, PLAIN, PROMPTS[0], 0.9)


@each_target
def test_runs_one_behind_another_have_the_scores_of_one_pass(kind: str) -> None:
    backend = target(kind)
    tree = Tree(5)
    left, right = tree.extend(ROOT, [7, 9], [0.5, 0.4])
    tree.add(left, 11, 1.0)
    last = tree.add(right, 13, 1.0)
    whole = backend.open(TEXT[:9])
    [scores] = backend.score([TreeInput(whole, tree)])
    session = backend.open(TEXT[:9])
    stages = backend.stages(session, 3, 0)
    assert isinstance(stages, TorchStages)
    assert stages.stages == 3
    # the root, its children, and a grandchild behind a run that is cancelled on its way
    root = stages.begin(tree.keep([]), 0)
    stages.step(root, 0)
    both = stages.begin(tree.keep([left, right]), 1)
    stages.step(root, 1)
    stages.step(both, 0)
    lost = stages.begin(tree.keep([left, right, 3]), 3)
    stages.step(root, 2)
    stages.step(both, 1)
    stages.step(lost, 0)
    stages.drop(lost, 1)
    deep = stages.begin(tree, 4)
    stages.step(both, 2)
    for stage in range(3):
        stages.step(deep, stage)
    for run, nodes in ((root, [0]), (both, [left, right]), (deep, [last])):
        first, found = stages.output(run)
        assert first == nodes[0]
        for row, node in enumerate(nodes):
            np.testing.assert_allclose(found.logits(row), scores.logits(node), atol=2e-4)
    session.commit([ROOT, right, last])
    whole.commit([ROOT, right, last])
    one, other = (backend.score([TreeInput(each, Tree(3))])[0] for each in (session, whole))
    np.testing.assert_allclose(one.logits(0), other.logits(0), atol=2e-4)
    session.close()
    whole.close()


def test_the_stages_of_a_stock_model_work_at_the_same_time() -> None:
    recipe = Recipe(DraftModel(model=target("stock")), PipeInfer(), Match(), Fixed(8, 8, 1))
    decoder = PipelineDecoder(Engine(target("stock"), recipe), TEXT[:9], Sampling(), KeyedRng(0))
    assert decoder.runner.parallel
    assert decoder.runner.stages == 4
    decoder.close()


@pytest.mark.parametrize(
    ("given", "bounds"),
    [
        ((12, 4, 0), [0, 3, 6, 9, 12]),
        ((4, 8, 0), [0, 1, 2, 3, 4]),
        ((12, 3, 2), [0, 2, 7, 12]),
        ((2, 2, 1), [0, 1, 2]),
    ],
)
def test_layers_are_shared_out_evenly(given: tuple[int, int, int], bounds: list[int]) -> None:
    assert stage_bounds(*given) == bounds


# ------------------------------------------------------------------------- the exit as the drafter
@pytest.fixture
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAPWOOD_CACHE", str(tmp_path))


EXITS: list[tuple[Policy, float]] = [(Ppsd(stages=3), 0.25), (Predictive(guesses=4), 0.5)]
each_exit = pytest.mark.parametrize(("policy", "share"), EXITS, ids=["ppsd", "predictive"])


def by_exit(policy: Policy, share: float) -> Recipe:
    return Recipe(LayerExit(share=share), policy, Match(), Fixed(8, 8, 4))


@pytest.mark.usefixtures("_cache")
@each_exit
@pytest.mark.parametrize(
    ("kind", "prompts"), [("stock", 24), pytest.param("packed", 2, marks=pytest.mark.slow)]
)
def test_the_text_of_an_exit_is_plain_decodings(
    kind: str, prompts: int, policy: Policy, share: float
) -> None:
    recipe = by_exit(policy, share)
    for prompt in PROMPTS[:prompts]:
        assert text(kind, recipe, prompt) == text(kind, PLAIN, prompt)
    assert text(kind, recipe, PROMPTS[0], 0.9) == text(kind, PLAIN, PROMPTS[0], 0.9)


def knowing(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Let the exit know plain decoding's text; returns that text."""
    known = text("stock", PLAIN, PROMPTS[0], length=9)

    def told(self: LayerExit, tree: Tree, frontier: Frontier, rng: Rng) -> None:
        for node, width in frontier:
            right = known[int(tree.depths[node])]
            others = [token for token in range(3, 3 + width) if token != right]
            tree.extend(node, [right, *others][:width], [0.5] * width)

    monkeypatch.setattr(LayerExit, "expand", told)
    return known


@pytest.mark.usefixtures("_cache")
def test_ppsd_confirms_a_token_a_tick_while_its_exit_is_right(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = knowing(monkeypatch)
    ticks = ticks_of(monkeypatch)
    engine = Engine(target("stock"), by_exit(Ppsd(stages=3), 0.25))
    first = next(engine.rounds(PROMPTS[0], Sampling(max_tokens=9), KeyedRng(5)))
    assert first.tokens == known
    assert (first.passes, len(ticks)) == (9, 9 + 2)  # two ticks to fill three stages


@pytest.mark.usefixtures("_cache")
def test_predictive_guesses_one_token_ahead_and_cancels_what_is_wrong(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = knowing(monkeypatch)
    ticks = ticks_of(monkeypatch)
    engine = Engine(target("stock"), by_exit(Predictive(guesses=2), 0.5))
    first = next(engine.rounds(PROMPTS[0], Sampling(max_tokens=9), KeyedRng(5)))
    assert first.tokens == known[:5]
    assert len(first.tree) == 1 + 4 * 2
    assert len(ticks) == 5 + 1  # a token a tick instead of one in two


def ticks_of(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry for each tick from now on."""
    ticks = list[int]()
    tick = PipelineDecoder._tick

    def counted(self: PipelineDecoder, *given: Any) -> None:
        ticks.append(1)
        tick(self, *given)

    monkeypatch.setattr(PipelineDecoder, "_tick", counted)
    return ticks


@pytest.mark.usefixtures("_cache")
def test_an_exit_drafts_without_a_pipeline_too() -> None:
    recipe = Recipe(LayerExit(), Chain(), Match(), Fixed(3, 3, 1))
    rounds = Engine(target("stock"), recipe).rounds(PROMPTS[0], Sampling(max_tokens=9), KeyedRng(5))
    found = list(islice(rounds, LENGTH))
    assert any(len(outcome.tree) == 4 for outcome in found)
    emitted = [token for outcome in found for token in outcome.tokens]
    assert emitted[:LENGTH] == text("stock", PLAIN, PROMPTS[0])


@pytest.mark.usefixtures("_cache")
def test_an_exit_that_reads_another_rows_state_would_be_noticed() -> None:
    """States of the first stage are those of the first layers, node by node."""
    backend = target("stock")
    tree = Tree(5)
    tree.extend(ROOT, [7, 9], [0.5, 0.4])
    session = backend.open(TEXT[:9])
    entered = backend.layer_input(TreeInput(session, tree), 1)
    stages = backend.stages(session, 3, 1)
    assert isinstance(stages, TorchStages)
    run = stages.begin(tree, 0)
    stages.step(run, 0)
    states = stages.states(run)
    assert states is not None
    np.testing.assert_allclose(states.numpy(), entered.numpy(), atol=1e-5)
    assert not np.allclose(states.numpy()[1], entered.numpy()[2], atol=1e-2)
    session.close()

"""Learned depth and size beat every constant pair; replayed cuts are the trees that would be checked."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sapwood.backends.toy import ToyBackend
from sapwood.common.numpy_mlp import load
from sapwood.controllers.fixed import Fixed
from sapwood.core.sampling import Sampling
from sapwood.core.tree import Tree
from sapwood.drafters.compose.draft_model import DraftModel
from sapwood.engine.cost_model import CostModel
from sapwood.engine.loop import Engine
from sapwood.errors import SapwoodError
from sapwood.policies.beam import Beam
from sapwood.policies.ltd import RAW, Ltd
from sapwood.policies.reach import value
from sapwood.policies.static import Static
from sapwood.recipe import Recipe
from sapwood.recipes import resolve
from sapwood.train import c2t, ltd, rounds
from sapwood.train.predictor_table import PREDICTOR_KINDS, PredictorOptions
from sapwood.train.replay import ReplayPrices, priced
from sapwood.train.rounds import RecordedRounds
from sapwood.verifiers.match import Match
from tests.helpers.hidden_state_toy import Mindful, Stateful, random_part
from tests.helpers.recorded_rounds import changing, made

torch.set_num_threads(1)


PROMPTS = [[0, 1, 2], [1, 1, 0], [2, 0], [0, 0, 1, 2], [2, 2, 1]]


def engine(recipe: Recipe | None = None) -> Engine:
    made = recipe or Recipe(
        Stateful(model=ToyBackend("draft")), Static(shape=[2, 1, 1]), Match(), Fixed()
    )
    return Engine(Mindful(), made, now=itertools.count().__next__)


ROWS = CostModel([1, 64], [0], [[1.0, 1.0 + 63 * 0.08]])  # seconds


def test_learned_depth_and_size_beat_every_constant_pair(tmp_path: Path) -> None:
    fit = ltd.fit(changing(np.random.default_rng(6)), cost=ROWS)
    scores = fit.report.scores
    assert scores["tokens per second"] > 1.05 * scores["best constant"]
    assert fit.report.after == pytest.approx(1 / scores["tokens per second"])
    again = ltd.fit(changing(np.random.default_rng(6)), cost=ROWS)
    assert again.report == fit.report
    fit.save(tmp_path, recipe="the one it was recorded with")
    facts = load(str(tmp_path), "ltd", "any").facts
    assert facts["report"] == fit.report.to_json()
    assert facts["recipe"] == "the one it was recorded with"


def test_a_replayed_cut_is_the_tree_that_would_have_been_checked() -> None:
    noise = np.random.default_rng(7)
    data = changing(noise, count=20)
    sizes = [1, 3, 5, 9]
    prices = ReplayPrices(0.15, ROWS)
    found, use = ltd.replay(data, prices, sizes)
    assert use.tolist() == list(range(20))
    for row, (tree, part) in enumerate(zip(data.trees(), rounds.spans(data.nodes), strict=True)):
        hit = np.append(True, data.labels[part] == 1)
        value(tree, RAW)
        for depth, (column, size) in itertools.product(range(1, 7), enumerate(sizes)):
            shallow = tree.keep([node for node in range(len(tree)) if tree.depths[node] <= depth])
            kept = shallow.best(size)
            assert shallow.kept is not None
            assert kept.kept is not None
            accepted = int(hit[shallow.kept[kept.kept]].sum()) - 1
            assert found.tokens[row, depth - 1, column] == accepted + 1
            cost = depth * 0.15 + ROWS.seconds(len(kept), 100)
            assert found.seconds[row, depth - 1, column] == pytest.approx(cost)


def test_the_policy_decides_as_it_did_in_the_replay(tmp_path: Path) -> None:
    budget = Fixed(nodes=99, depth=4, width=2)
    sampling = Sampling(max_tokens=60)
    recipe = Recipe(DraftModel(model=ToyBackend("draft")), Beam(beam=99), Match(), budget)
    data = rounds.record(engine(recipe), PROMPTS, sampling, tmp_path / "rounds.safetensors")
    answers = set()
    for seed in range(6):  # policies need not be good to be compared
        folder = random_part("ltd", tmp_path / str(seed), seed)
        answers |= compared(
            data,
            folder,
            Recipe(recipe.drafter, Ltd(beam=99, weights=folder), Match(), budget),
            sampling,
        )
    assert len(answers) > 3


def compared(
    data: RecordedRounds, folder: str, live: Recipe, sampling: Sampling
) -> set[tuple[int, int]]:
    """Compare depths and sizes of live rounds with the replay of the same places; the answers that came up."""
    bundle = load(folder, "ltd", "any")
    sizes = bundle.facts["sizes"]
    found, use = ltd.replay(data, priced(data, ROWS), sizes)
    depth = ltd.choose_depth(bundle.nets["depth"], found)
    size = np.array(sizes)[ltd.picked(ltd.choose_size(bundle.nets["size"], found), depth)]
    places = {
        (int(data.prompt[number]), int(data.context[number])): row for row, number in enumerate(use)
    }
    answers = set()
    for number, prompt in enumerate(PROMPTS):
        for outcome, _ in rounds.play(engine(live), prompt, sampling, None):
            row = places.get((number, outcome.context))
            if (
                row is not None and outcome.context < len(prompt) + 50
            ):  # before the end limits the depth
                assert outcome.grown.height == depth[row]
                assert len(outcome.tree) - 1 == min(size[row], len(outcome.grown) - 1)
                answers.add((int(depth[row]), int(size[row])))
    return answers


def test_nothing_drafted_is_nothing_to_learn() -> None:
    empty = made([Tree(0)] * 20, [[]] * 20)
    with pytest.raises(SapwoodError, match="no drafted nodes were recorded"):
        ltd.fit(empty)
    with pytest.raises(SapwoodError, match="no drafted nodes were recorded"):
        c2t.fit(empty)


def test_trees_are_recorded_as_large_as_the_policy_may_choose() -> None:
    recorded: Any = PREDICTOR_KINDS["ltd"].recipe(PredictorOptions()).controller
    used: Any = resolve("ltd").controller
    assert max(ltd.SIZES) == recorded.nodes == used.nodes == 240
    assert recorded.depth == used.depth == 12

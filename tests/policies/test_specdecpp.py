"""SpecDec++: a chain ends when a refusal is likely."""

import itertools
import math
from pathlib import Path

import numpy as np
import pytest

from sapwood.backends.toy import ToyBackend
from sapwood.common.numpy_mlp import MlpBundle, NumpyMlp
from sapwood.controllers.fixed import Fixed
from sapwood.core.rng import KeyedRng
from sapwood.core.sampling import Sampling
from sapwood.drafters.compose.draft_model import DraftModel
from sapwood.engine.loop import Engine
from sapwood.errors import SapwoodError
from sapwood.policies.specdecpp import SpecDecPp
from sapwood.recipe import Recipe
from sapwood.verifiers.match import Match
from tests.helpers.hidden_state_toy import path_state, random_part
from tests.helpers.trained_policy_rounds import bound, chain_of


def head(bias: float, *weights: float) -> MlpBundle:
    """A head whose log odds of acceptance are a line over the state."""
    line = np.array([weights], np.float32)
    zeros = np.zeros(len(weights), np.float32)
    ones = np.ones(len(weights), np.float32)
    return MlpBundle(
        "specdec++", {"head": NumpyMlp([line], [np.array([bias], np.float32)], zeros, ones)}
    )


@pytest.mark.parametrize("threshold", [0.3, 0.7])
def test_a_chain_ends_when_a_refusal_is_likely(threshold: float, tmp_path: Path) -> None:
    chance = 0.8
    head(math.log(chance / (1 - chance)), 0, 0, 0).save(tmp_path)
    tree = chain_of(SpecDecPp(threshold=threshold, weights=str(tmp_path)))
    tested = next(count for count in itertools.count(1) if 1 - chance**count > threshold)
    assert tree.height == tested + 1  # the newest token is never tested, and stays


def test_a_head_reads_the_state_of_each_token_it_has_read(tmp_path: Path) -> None:
    head(0.3, 1, -1, 0.5).save(tmp_path)
    policy = bound(SpecDecPp(weights=str(tmp_path)))
    assert isinstance(policy, SpecDecPp)
    tree = chain_of(SpecDecPp(threshold=1.0, weights=str(tmp_path)), depth=4)
    read = [path_state(tree.spell(node)) for node in range(1, 4)]  # not the root, not the last
    odds = [0.3 + state @ np.array([1, -1, 0.5]) for state in read]
    assert policy.refusal(tree) == pytest.approx(
        1 - math.prod(1 / (1 + math.exp(-one)) for one in odds), rel=1e-5
    )


def test_bounds_of_the_chain_hold(tmp_path: Path) -> None:
    head(99.0, 0, 0, 0).save(tmp_path / "sure")
    head(-99.0, 0, 0, 0).save(tmp_path / "never")
    assert chain_of(SpecDecPp(most=7, weights=str(tmp_path / "sure"))).height == 7
    assert chain_of(SpecDecPp(weights=str(tmp_path / "sure")), depth=5).height == 5
    assert chain_of(SpecDecPp(weights=str(tmp_path / "never"))).height == 2


def test_a_drafter_without_states_is_refused(tmp_path: Path) -> None:
    policy = SpecDecPp(weights=random_part("specdec++", tmp_path))
    recipe = Recipe(DraftModel(model=ToyBackend("draft")), policy, Match(), Fixed(depth=4))
    with pytest.raises(SapwoodError, match="this drafter keeps none; use a trained one"):
        next(Engine(ToyBackend(), recipe).rounds([0, 1, 2], Sampling(), KeyedRng(0)))
    head(0, 1, 1).save(tmp_path / "narrow")
    with pytest.raises(SapwoodError, match="was trained on 2 inputs and gets 3"):
        chain_of(SpecDecPp(weights=str(tmp_path / "narrow")))

"""LDLP reads the last hidden state and predicts the length of the next draft."""

from pathlib import Path

import numpy as np
import pytest

from sapwood.backends.toy import ToyBackend
from sapwood.common.numpy_mlp import MlpBundle
from sapwood.controllers.fixed import Fixed
from sapwood.controllers.ldlp import Ldlp
from sapwood.drafters.compose.draft_model import DraftModel
from sapwood.engine.loop import Engine
from sapwood.errors import SapwoodError
from sapwood.policies.chain import Chain
from sapwood.recipe import Recipe
from sapwood.verifiers.judge import Judge
from sapwood.verifiers.match import Match
from tests.helpers.hidden_state_toy import LAYER, Mindful, random_net, random_part
from tests.helpers.trained_policy_rounds import played


def test_ldlp_reads_the_last_state_and_the_token_that_followed(tmp_path: Path) -> None:
    net = random_net([6, 8, 1], 3)
    MlpBundle("ldlp", {"length": net}, {"layer": LAYER}).save(tmp_path)
    target = Mindful()
    controller = Ldlp(most=9, width=1, weights=str(tmp_path))
    recipe = Recipe(DraftModel(model=ToyBackend("target")), Chain(), Match(), controller)
    text = [0, 1, 2]
    depths = []
    for outcome in played(recipe, 12, target):
        state = target.scores([tuple(text[:-1])]).rows[0]
        said = net(np.concatenate((state, np.eye(3)[text[-1]])))[0]
        depths.append(min(max(round(float(said)), 0), 9))
        assert outcome.tree.height == depths[-1]
        text += outcome.tokens
    assert len(set(depths)) > 2
    assert LAYER in target.watched


def test_ldlp_begins_at_its_start_where_nothing_was_read(tmp_path: Path) -> None:
    controller = Ldlp(start=3, width=1, weights=random_part("ldlp", tmp_path))
    recipe = Recipe(DraftModel(model=ToyBackend("target")), Chain(), Match(), controller)
    assert played(recipe, 1, Mindful(), prompt=(1,))[0].tree.height == 3


def test_parts_that_read_states_need_a_target_that_shows_them(tmp_path: Path) -> None:
    drafter = DraftModel(model=ToyBackend("draft"))
    controller = Ldlp(weights=random_part("ldlp", tmp_path / "ldlp"))
    with pytest.raises(
        SapwoodError,
        match=r"needs hidden, which the toy backend does not .* use another controller",
    ):
        Engine(ToyBackend(), Recipe(drafter, Chain(), Match(), controller))
    judge = Judge(weights=random_part("judge", tmp_path / "judge"))
    with pytest.raises(
        SapwoodError, match=r"needs hidden, which the toy backend does not .* use another verifier"
    ):
        Engine(ToyBackend(), Recipe(drafter, Chain(), judge, Fixed()))

"""Draft & Verify's stop rule: the token stays, and the threshold follows the acceptance rate."""

import itertools
from dataclasses import dataclass
from typing import ClassVar

import pytest

from sapwood.backends.toy import ToyBackend
from sapwood.controllers.fixed import Fixed
from sapwood.core.rng import KeyedRng
from sapwood.core.sampling import Sampling
from sapwood.core.types import Draw
from sapwood.drafters.compose.draft_model import DraftModel
from sapwood.engine.loop import Engine
from sapwood.policies.draft_verify import DraftVerify
from sapwood.recipe import Recipe
from sapwood.recipes import resolve
from sapwood.testing import law_error
from sapwood.verifiers.speculative import Speculative

PROMPT = [0, 1, 2]


def made(policy: DraftVerify, depth: int = 4, draft: str = "draft") -> Recipe:
    drafter = DraftModel(model=ToyBackend(draft), draws=Draw.IID)
    return Recipe(drafter, policy, Speculative(), Fixed(depth, depth, 1))


@pytest.mark.parametrize("draft", ["draft", "target"])
def test_the_threshold_is_the_published_one_round_by_round(draft: str) -> None:
    options = DraftVerify(start=0.3, target=0.6, step=0.2)
    engine = Engine(ToyBackend("target", context=900), made(options, draft=draft))
    policy = engine.recipe.policy
    assert isinstance(policy, DraftVerify)
    threshold = 0.3
    moves = set()
    for seed in (1, 2):  # the second request goes on with the threshold of the first
        rate = 0.0
        sampling = Sampling(temperature=1.0, max_tokens=800)
        for outcome in itertools.islice(engine.rounds(PROMPT, sampling, KeyedRng(seed)), 40):
            probs = outcome.tree.probs[1:].tolist()
            assert all(prob >= threshold for prob in probs[:-1])
            assert probs[-1] < threshold or len(probs) == 4  # the unlikely token is verified
            rate = 0.5 * rate + 0.5 * outcome.verdict.accepted / len(probs)
            step = 0.2 if rate < 0.6 else 0.0 if len(probs) == 4 else -0.2
            threshold = 0.9 * threshold + 0.1 * (threshold + step)
            assert policy.threshold.value == pytest.approx(threshold)
            moves.add(step)
    assert moves == {0.2, 0.0, -0.2} if draft == "target" else 0.2 in moves


@pytest.mark.parametrize("salt", "ab")
def test_what_was_learnt_keeps_the_law_of_the_next_round(salt: str) -> None:
    recipe = made(DraftVerify(step=1.0, inertia=0.2), depth=2)
    assert law_error(recipe, ToyBackend(salt), rounds=2, horizon=3) <= 1e-12


@dataclass
class DropsTheToken(DraftVerify):
    """Leaves the unlikely token out."""

    drops: ClassVar[bool] = True


def test_leaving_the_token_out_would_be_noticed() -> None:
    errors = [law_error(made(DropsTheToken(), depth=2), ToyBackend(salt)) for salt in "abc"]
    assert max(errors) > 1e-3


def test_the_recipe_has_the_published_numbers() -> None:
    recipe = resolve("draft-verify")
    assert recipe.policy == DraftVerify(start=0.6, target=0.9, step=0.01, inertia=0.9, memory=0.5)
    assert recipe.controller == Fixed(12, 12, 1)

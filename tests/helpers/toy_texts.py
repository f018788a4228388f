"""The first tokens that a recipe gives on the toy target."""

from typing import Any

from sapwood.backends.toy import ToyBackend
from sapwood.controllers.fixed import Fixed
from sapwood.core.rng import KeyedRng
from sapwood.core.sampling import Sampling
from sapwood.core.types import Draw
from sapwood.drafters.compose.draft_model import DraftModel
from sapwood.engine.loop import Engine
from sapwood.recipe import Recipe

LENGTH = 24


def text_of(
    policy: Any,
    verifier: Any,
    sampling: Sampling,
    seed: int,
    controller: Any = None,
    draws: Draw = Draw.TOPK,
) -> list[int]:
    """The first tokens of a recipe on the toy target."""
    drafter = DraftModel(model=ToyBackend("draft"), draws=draws)
    recipe = Recipe(drafter, policy, verifier, controller or Fixed(nodes=5, depth=3, width=2))
    text: list[int] = []
    for outcome in Engine(ToyBackend(), recipe).rounds([0, 1, 2], sampling, KeyedRng(seed)):
        text += outcome.tokens
        if len(text) >= LENGTH:
            break
    return text[:LENGTH]

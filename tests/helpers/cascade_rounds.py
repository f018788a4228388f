"""Rounds of cascaded toy drafters on a toy target."""

import itertools
from typing import Any

from sapwood.backends.toy import ToyBackend
from sapwood.controllers.fixed import Fixed
from sapwood.core.rng import KeyedRng
from sapwood.core.sampling import Sampling
from sapwood.core.types import Draw, Outcome
from sapwood.drafters.compose.draft_model import DraftModel
from sapwood.engine.loop import Engine
from sapwood.recipe import Recipe
from sapwood.verifiers.match import Match

PROMPT = [0, 3, 1, 4, 2]
TARGET = ToyBackend("wide", vocab=5)
GREEDY = Sampling(max_tokens=200)
EXACT = 1e-12


def toy(salt: str = "draft", draws: Draw = Draw.TOPK, vocab: int = 5) -> DraftModel:
    """A draft model with its own count of passes."""
    return DraftModel(model=ToyBackend(salt, vocab=vocab), draws=draws)


def play(
    drafter: Any, policy: Any, nodes: int = 12, rounds: int = 8, sampling: Sampling = GREEDY
) -> list[Outcome]:
    """The first rounds of a recipe on the toy target."""
    recipe = Recipe(drafter, policy, Match(), Fixed(nodes=nodes, depth=6, width=3))
    running = Engine(TARGET, recipe).rounds(PROMPT, sampling, KeyedRng(1))
    found = list(itertools.islice(running, rounds))
    running.close()
    return found


def shapes(outcomes: list[Outcome]) -> list[Any]:
    """What was drafted: tokens, parents and chances."""
    return [
        (
            outcome.tree.tokens.tolist(),
            outcome.tree.parents.tolist(),
            outcome.tree.probs.round(12).tolist(),
        )
        for outcome in outcomes
    ]

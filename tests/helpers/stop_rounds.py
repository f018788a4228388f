"""Rounds of sampled chains on toys, and the draft's distributions along them."""

import itertools
import math

from sapwood.backends.toy import ToyBackend, probs_after
from sapwood.controllers.fixed import Fixed
from sapwood.core.array_types import FloatArray
from sapwood.core.protocols import Policy
from sapwood.core.rng import KeyedRng
from sapwood.core.sampling import Sampling
from sapwood.core.types import Draw, Outcome
from sapwood.drafters.compose.draft_model import DraftModel
from sapwood.engine.loop import Engine
from sapwood.recipe import Recipe
from sapwood.verifiers.match import Match
from sapwood.verifiers.speculative import Speculative

DEEP = Fixed(nodes=8, depth=8, width=1)


def rounds(
    policy: Policy, sampling: Sampling | None = None, count: int = 12, seed: int = 1
) -> list[Outcome]:
    """Rounds of a chain on toys."""
    options = sampling or Sampling(temperature=1.0, max_tokens=500)
    draws = Draw.TOPK if options.greedy else Draw.IID
    recipe = Recipe(
        DraftModel(model=ToyBackend("draft"), draws=draws),
        policy,
        Speculative() if not options.greedy else Match(),
        DEEP,
    )
    engine = Engine(ToyBackend(), recipe)
    return list(itertools.islice(engine.rounds([0, 1, 2], options, KeyedRng(seed)), count))


def draft_laws(outcome: Outcome, text: list[int]) -> list[FloatArray]:
    """The draft's law before each token of a round's chain and after the last, looked up without the engine."""
    tokens = outcome.grown.tokens[1:].tolist()
    return [probs_after("draft", 3, (*text, *tokens[:length])) for length in range(len(tokens) + 1)]


def texts(outcomes: list[Outcome]) -> list[list[int]]:
    """The text before each round."""
    found = []
    text = [0, 1, 2]
    for outcome in outcomes:
        found.append(list(text))
        text += outcome.tokens
    return found


def slow_entropy(full_probs: FloatArray) -> float:
    return -sum((chance * math.log(chance) for chance in full_probs.tolist() if chance > 0), 0.0)

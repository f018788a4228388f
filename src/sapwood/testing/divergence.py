"""Departure of a lossy recipe from its target, exactly, on a toy.

Every random choice of the recipe is enumerated. At each position of the text the distribution of
its next token, given its text so far, is compared with the target's own: their total variation is
the share of tokens there that plain decoding would have chosen otherwise. The departure of a
lossless recipe is zero.
"""

import itertools
from collections.abc import Sequence

import numpy as np

from sapwood.backends.toy import ToyBackend
from sapwood.core.array_types import FloatArray
from sapwood.core.protocols import Backend
from sapwood.core.rng import Rng
from sapwood.core.sampling import Sampling
from sapwood.engine.loop import Engine
from sapwood.recipe import Recipe
from sapwood.testing.exact import outcomes, target_law


def departure(
    recipe: Recipe,
    target: Backend | None = None,
    sampling: Sampling | None = None,
    *,
    prompt: Sequence[int] = (0, 1, 2),
    horizon: int = 3,
) -> FloatArray:
    """Mean total variation between the recipe's next token and the target's, [horizon]."""
    backend = target or ToyBackend()
    options = sampling or Sampling(temperature=1.0, max_tokens=horizon + 1)

    def run(rng: Rng) -> tuple[int, ...]:
        engine = Engine(backend, recipe, now=itertools.count().__next__)
        text = list[int]()
        for outcome in engine.rounds(prompt, options, rng):
            text += outcome.tokens
            if len(text) >= horizon:
                break
        return tuple(text[:horizon])

    masses: dict[tuple[int, ...], float] = {}  # beginning of a text -> its probability
    for weight, text in outcomes(run):
        for end in range(horizon + 1):
            masses[text[:end]] = masses.get(text[:end], 0.0) + weight
    gaps = np.zeros(horizon)
    for text, mass in masses.items():
        if len(text) < horizon:
            ours = np.array(
                [masses.get((*text, token), 0.0) for token in range(backend.info.vocab)]
            )
            theirs = mass * target_law(backend, prompt, options, text)
            gaps[len(text)] += np.abs(ours - theirs).sum() / 2
    return gaps

"""How far a lossy recipe departs from its target, exactly, on a toy.

Every random act of the recipe is enumerated. At each place of the text the law of its next token, given what it
said so far, is compared with the target's own: their total variation is the share of tokens there that plain
decoding would have had to say otherwise. A lossless recipe departs by nothing.
"""

import itertools
from collections.abc import Sequence

import numpy as np

from sapwood.arrays import FloatArray
from sapwood.backends.toy import Toy
from sapwood.engine import Engine
from sapwood.protocols import Backend
from sapwood.recipe import Recipe
from sapwood.rng import Rng
from sapwood.sampling import Sampling
from sapwood.testing.exact import outcomes, target_law


def departure(
    recipe: Recipe,
    target: Backend | None = None,
    sampling: Sampling | None = None,
    *,
    prompt: Sequence[int] = (0, 1, 2),
    horizon: int = 3,
) -> FloatArray:
    """Mean total variation between the recipe's next token and the target's, at each of the first places, [horizon]."""
    backend = target or Toy()
    options = sampling or Sampling(temperature=1.0, max_tokens=horizon + 1)

    def run(rng: Rng) -> tuple[int, ...]:
        engine, text = Engine(backend, recipe, now=itertools.count().__next__), list[int]()
        for outcome in engine.rounds(prompt, options, rng):
            text += outcome.tokens
            if len(text) >= horizon:
                break
        return tuple(text[:horizon])

    masses: dict[tuple[int, ...], float] = {}  # beginning of a text -> its chance
    for weight, text in outcomes(run):
        for end in range(horizon + 1):
            masses[text[:end]] = masses.get(text[:end], 0.0) + weight
    gaps = np.zeros(horizon)
    for text, mass in masses.items():
        if len(text) < horizon:
            said = np.array([masses.get((*text, token), 0.0) for token in range(backend.info.vocab)])
            gaps[len(text)] += np.abs(said - mass * target_law(backend, prompt, options, text)).sum() / 2
    return gaps

"""The exact output law of a recipe on a toy target, by enumeration of every random act.

All randomness goes through `flip` and `pick`. An enumerator answers them from a script of decisions
and queues the decisions it did not take; replaying the engine once per script yields every output
with its exact probability. Nothing is sampled, so a bias of 1e-6 is as visible as one of 0.1.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from sapwood.arrays import FloatArray
from sapwood.backends.toy import Toy
from sapwood.engine import Engine
from sapwood.protocols import Backend, Work
from sapwood.recipe import Recipe
from sapwood.rng import Place, Rng
from sapwood.sampling import Sampler, Sampling
from sapwood.tree import Tree

Result = TypeVar("Result")
Law = dict[tuple[int, ...], float]  # text -> probability


class Enumerator:
    """Follows a script of decisions, then always the first option; queues the options it left."""

    def __init__(self, script: list[int]) -> None:
        self.script, self.at, self.weight = script, 0, 1.0
        self.left: list[list[int]] = []
        self.places: set[Place] = set()

    def flip(self, chance: float, place: Place) -> bool:
        """Both sides of the coin, one per replay."""
        return self._take([1.0 - chance, chance], place) == 1

    def pick(self, law: FloatArray, place: Place) -> int:
        """Every token of positive probability, one per replay."""
        return self._take(law.tolist(), place)

    def _take(self, chances: list[float], place: Place) -> int:
        if place in self.places:
            raise AssertionError(f"the noise of {place} was used twice: two acts would be correlated")
        self.places.add(place)
        if self.at == len(self.script):
            first, *rest = [index for index, chance in enumerate(chances) if chance > 0]
            self.left += [[*self.script, index] for index in rest]
            self.script = [*self.script, first]
        choice = self.script[self.at]
        self.at += 1
        self.weight *= chances[choice]
        return choice


def outcomes(run: Callable[[Rng], Result]) -> Iterator[tuple[float, Result]]:
    """Every result of `run` with its exact probability."""
    scripts: list[list[int]] = [[]]
    while scripts:
        rng = Enumerator(scripts.pop())
        result = run(rng)
        yield rng.weight, result
        scripts += rng.left


def target_law(target: Backend, prompt: Sequence[int], sampling: Sampling, text: Sequence[int]) -> FloatArray:
    """The law of the token after prompt and text, as plain decoding defines it."""
    session = target.open([*prompt, *text][:-1])
    [scores] = target.score([Work(session, Tree([*prompt, *text][-1]))])
    sampler = Sampler(sampling, prompt)
    sampler.commit(text)
    return sampler.law(scores.logits(0), [])


def output_law(target: Backend, recipe: Recipe, prompt: Sequence[int], sampling: Sampling, rounds: int) -> Law:
    """The exact law over what `rounds` rounds of the engine emit."""

    def run(rng: Rng) -> tuple[int, ...]:
        engine = Engine(target, recipe, now=itertools.count().__next__)  # a clock that repeats exactly
        steps = itertools.islice(engine.rounds(prompt, sampling, rng), rounds)
        return tuple(token for outcome in steps for token in outcome.tokens)

    law: Law = {}
    for weight, text in outcomes(run):
        law[text] = law.get(text, 0.0) + weight
    return law


def law_error(
    recipe: Recipe,
    target: Backend | None = None,
    sampling: Sampling | None = None,
    *,
    prompt: Sequence[int] = (0, 1, 2),
    rounds: int = 1,
    horizon: int = 3,
) -> float:
    """Largest gap between the recipe's exact law over `horizon` tokens and the target's own."""
    backend = target or Toy()
    options = sampling or Sampling(temperature=1.0, max_tokens=horizon + 1)
    memory: dict[tuple[int, ...], FloatArray] = {}

    def law_at(text: tuple[int, ...]) -> FloatArray:
        if text not in memory:
            memory[text] = target_law(backend, prompt, options, text)
        return memory[text]

    found: Law = {}

    def spread(text: tuple[int, ...], weight: float) -> None:
        """Cut a text at the horizon, or let the target finish it."""
        if len(text) >= horizon:
            found[text[:horizon]] = found.get(text[:horizon], 0.0) + weight
            return
        for token, chance in enumerate(law_at(text).tolist()):
            if chance > 0:
                spread((*text, token), weight * chance)

    for text, weight in output_law(backend, recipe, prompt, options, rounds).items():
        spread(text, weight)
    exact = {
        text: math.prod(float(law_at(text[:index])[token]) for index, token in enumerate(text))
        for text in itertools.product(range(backend.info.vocab), repeat=horizon)
    }
    return max(abs(exact.get(text, 0.0) - found.get(text, 0.0)) for text in exact.keys() | found.keys())

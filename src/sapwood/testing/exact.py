"""The exact output distribution of a recipe on a toy target, by enumeration of random choices.

All randomness goes through `flip` and `pick`. An enumerator answers them from a script of decisions
and queues the decisions it did not take; replaying the engine once per script yields every output
with its exact probability. Nothing is sampled, so a bias of 1e-6 is as visible as one of 0.1.
"""

import itertools
import math
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from sapwood.backends.toy import ToyBackend
from sapwood.core.array_types import FloatArray
from sapwood.core.protocols import Backend, RequestContext, TargetOutput, TreeInput
from sapwood.core.rng import NoiseKey, Rng
from sapwood.core.sampling import Sampler, Sampling
from sapwood.core.target_probs import PathProbs
from sapwood.core.tree import Tree
from sapwood.core.types import Outcome, Verdict
from sapwood.engine.loop import Engine
from sapwood.engine.request_decoder import RequestDecoder
from sapwood.recipe import Recipe

Result = TypeVar("Result")
Law = dict[tuple[int, ...], float]  # text -> probability


class Enumerator:
    """Random source that follows a script, then the first option; queues the other options."""

    def __init__(self, script: list[int], used: Collection[NoiseKey] = ()) -> None:
        self.script = script
        self.at = 0
        self.weight = 1.0
        self.left: list[list[int]] = []
        self.places = set(used)

    def flip(self, chance: float, place: NoiseKey) -> bool:
        """Both sides of the coin, one per replay."""
        return self._take([1.0 - chance, chance], place) == 1

    def pick(self, probs: FloatArray, place: NoiseKey) -> int:
        """Every token of positive probability, one per replay."""
        return self._take(probs.tolist(), place)

    def _take(self, chances: list[float], place: NoiseKey) -> int:
        if place in self.places:
            raise AssertionError(
                f"the noise of {place} was used twice: two choices would be correlated"
            )
        self.places.add(place)
        if self.at == len(self.script):
            first, *rest = [index for index, chance in enumerate(chances) if chance > 0]
            self.left += [[*self.script, index] for index in rest]
            self.script = [*self.script, first]
        choice = self.script[self.at]
        self.at += 1
        self.weight *= chances[choice]
        return choice


def outcomes(
    run: Callable[[Enumerator], Result], used: Collection[NoiseKey] = ()
) -> Iterator[tuple[float, Result]]:
    """Every result of `run` with its exact probability; the noise in `used` was used before."""
    scripts: list[list[int]] = [[]]
    while scripts:
        rng = Enumerator(scripts.pop(), used)
        result = run(rng)
        yield rng.weight, result
        scripts += rng.left


def target_law(
    target: Backend, prompt: Sequence[int], sampling: Sampling, text: Sequence[int]
) -> FloatArray:
    """Probs of the token after prompt and text, as plain decoding defines them."""
    session = target.open([*prompt, *text][:-1])
    [scores] = target.score([TreeInput(session, Tree([*prompt, *text][-1]))])
    sampler = Sampler(sampling, prompt)
    sampler.commit(text)
    return sampler.probs(scores.logits(0), [])


def output_law(
    target: Backend, recipe: Recipe, prompt: Sequence[int], sampling: Sampling, rounds: int
) -> Law:
    """The exact distribution over the output of `rounds` rounds."""

    def run(rng: Rng) -> tuple[int, ...]:
        engine = Engine(target, recipe, now=ticks())
        steps = itertools.islice(engine.rounds(prompt, sampling, rng), rounds)
        return tuple(token for outcome in steps for token in outcome.tokens)

    found = first_round(target, recipe, prompt, sampling) if rounds == 1 else outcomes(run)
    probs: Law = {}
    for weight, text in found:
        probs[text] = probs.get(text, 0.0) + weight
    return probs


def ticks() -> Callable[[], float]:
    """A deterministic clock."""
    return itertools.count().__next__


@dataclass(frozen=True)
class RememberedProbs(PathProbs):
    """Probs of a tree on which many verdicts are given: computed once for each node."""

    known: dict[int, FloatArray] = field(default_factory=dict)

    def probs(self, node: int) -> FloatArray:
        """Distribution of the next token after this node, [vocab]; the caller may change it."""
        if node not in self.known:
            self.known[node] = super().probs(node)
        return self.known[node].copy()


def first_round(
    target: Backend, recipe: Recipe, prompt: Sequence[int], sampling: Sampling
) -> Iterator[tuple[float, tuple[int, ...]]]:
    """Outputs of the first round: each draft is made once, then all verdicts on it."""

    def draft(rng: Enumerator) -> tuple[RequestDecoder, TargetOutput, Enumerator]:
        engine = Engine(target, recipe, now=ticks())
        decoder = RequestDecoder(engine, prompt, sampling, rng)
        [scores] = target.score([decoder.draft()])
        return decoder, scores, rng

    for weight, (decoder, scores, rng) in outcomes(draft):
        request = RequestContext(prompt, decoder.sampler, decoder.session)
        probs = RememberedProbs(decoder.tree, scores, decoder.sampler)
        with closing(decoder):
            for chance, verdict in outcomes(partial(verify, decoder, probs, request), rng.places):
                outcome = Outcome(decoder.grown, decoder.tree, verdict, scores, len(prompt))
                yield weight * chance, tuple(outcome.tokens)


def verify(decoder: RequestDecoder, probs: PathProbs, request: RequestContext, rng: Rng) -> Verdict:
    """A verdict on the decoder's tree, by a verifier that has seen no other."""
    decoder.verifier = decoder.verifier.fresh()
    decoder.verifier.reset(request)
    decoder.rng = rng
    return decoder.verify(probs)


def law_error(
    recipe: Recipe,
    target: Backend | None = None,
    sampling: Sampling | None = None,
    *,
    prompt: Sequence[int] = (0, 1, 2),
    rounds: int = 1,
    horizon: int = 3,
) -> float:
    """Largest gap between the exact distributions of recipe and target over `horizon` tokens."""
    backend = target or ToyBackend()
    options = sampling or Sampling(temperature=1.0, max_tokens=horizon + 1)
    memory: dict[tuple[int, ...], FloatArray] = {}

    def law_at(text: tuple[int, ...]) -> FloatArray:
        if text not in memory:
            memory[text] = target_law(backend, prompt, options, text)
        return memory[text]

    found: Law = {}

    def spread(text: tuple[int, ...], weight: float) -> None:
        """Truncate a text at the horizon, or complete it with the target."""
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
    return max(
        abs(exact.get(text, 0.0) - found.get(text, 0.0)) for text in exact.keys() | found.keys()
    )

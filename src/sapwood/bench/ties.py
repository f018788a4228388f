"""Why an output differs from plain decoding's: the two tokens where they part, and what the target gave each.

A pass over a tree and a pass over one token add the same numbers in another order, so two tokens
that the target likes equally may swap. The target reads the common text once more, and the gap
between the two tokens tells such a tie from a fault.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sapwood.arrays import FloatArray
from sapwood.protocols import Backend, Work
from sapwood.rng import Keyed, Place
from sapwood.sampling import Sampling
from sapwood.tree import Tree

# how far rounding may move the gap of two logits in this number format; measured for float16 on a GPU, where one
# logit moves by up to 0.063 between a pass over one row and one over many
SLACK = {"float64": 1e-9, "float32": 2e-3, "float16": 0.125, "bfloat16": 0.5}


@dataclass(frozen=True, slots=True)
class Divergence:
    """Where an output leaves plain decoding's."""

    prompt: str
    position: int  # place in the output, first token = 0
    plain_token: int | None  # None where the output ended
    recipe_token: int | None
    plain_logit: float | None
    recipe_logit: float | None
    gap: float | None  # plain's token before the other, in logits; at a temperature, noise included
    tie: bool  # True when rounding explains it


def parting(one: Sequence[int], other: Sequence[int]) -> int | None:
    """First place where two outputs differ; None where they are equal."""
    both = min(len(one), len(other))
    place = next((place for place in range(both) if one[place] != other[place]), both)
    return None if place == len(one) == len(other) else place


def explain(
    target: Backend, name: str, prompt: Sequence[int], plain: Sequence[int], other: Sequence[int], sampling: Sampling
) -> Divergence | None:
    """The divergence of two outputs on this prompt; None where they are equal."""
    place = parting(plain, other)
    if place is None:
        return None
    if place == min(len(plain), len(other)):  # one goes on where the other ended: never a tie
        last = [tokens[place] if place < len(tokens) else None for tokens in (plain, other)]
        return Divergence(name, place, last[0], last[1], None, None, None, tie=False)
    text, ours, theirs = [*prompt, *plain[:place]], plain[place], other[place]
    logits = logits_after(target, text)
    wanted = noisy(logits, sampling, len(text))
    gap = float(wanted[ours] - wanted[theirs])
    tie = abs(gap) <= SLACK.get(target.info.dtype, 0.0)
    return Divergence(name, place, ours, theirs, float(logits[ours]), float(logits[theirs]), gap, tie)


def logits_after(target: Backend, text: Sequence[int]) -> FloatArray:
    """What the target says after this text in a pass over one row, float64 [vocab]."""
    session = target.open(text[:-1])
    try:
        [scores] = target.score([Work(session, Tree(text[-1]))])
        return scores.logits(0).astype(np.float64)
    finally:
        session.close()


def noisy(logits: FloatArray, sampling: Sampling, position: int) -> FloatArray:
    """Logits whose best token is the one plain decoding takes at this position."""
    if sampling.greedy:
        return logits
    noise = Keyed(sampling.seed).noise(Place(position), len(logits))
    return logits - sampling.temperature * np.log(-np.log(noise))

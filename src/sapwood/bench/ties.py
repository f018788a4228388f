"""Explanation of an output that differs from plain decoding's: a tie of two logits, or a fault.

A pass over a tree and a pass over one token add the same numbers in another order, so two tokens
with equal logits may swap. The target scores the common text once more, and the gap between the two
tokens' logits tells a tie from a fault. The bound on the gap that rounding explains is fixed for
the common number formats and measured on the text itself for others, such as quantised weights.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sapwood.core.array_types import FloatArray
from sapwood.core.protocols import Backend, TreeInput
from sapwood.core.rng import KeyedRng, NoiseKey
from sapwood.core.sampling import Sampling
from sapwood.core.tree import Tree

# by how much rounding may change the gap of two logits in this number format; measured for float16
# on a GPU, where one logit changes by up to 0.063 between a pass over one row and one over many
SLACK = {"float64": 1e-9, "float32": 2e-3, "float16": 0.125, "bfloat16": 0.5}
TRIED = 12  # last tokens of a text on which another format's rounding is measured


@dataclass(frozen=True, slots=True)
class Divergence:
    """First difference of an output from plain decoding's."""

    prompt: str
    position: int  # in the output, first token = 0
    plain_token: int | None  # None if the output ended
    recipe_token: int | None
    plain_logit: float | None
    recipe_logit: float | None
    gap: float | None  # plain's logit minus the other; at a temperature, noise included
    tie: bool  # True when rounding explains it


def first_difference(one: Sequence[int], other: Sequence[int]) -> int | None:
    """Index of the first difference of two outputs; None if they are equal."""
    both = min(len(one), len(other))
    place = next((place for place in range(both) if one[place] != other[place]), both)
    return None if place == len(one) == len(other) else place


def explain(
    target: Backend,
    name: str,
    prompt: Sequence[int],
    plain: Sequence[int],
    other: Sequence[int],
    sampling: Sampling,
) -> Divergence | None:
    """The divergence of two outputs on this prompt; None if they are equal."""
    place = first_difference(plain, other)
    if place is None:
        return None
    if place == min(len(plain), len(other)):  # one ended before the other: never a tie
        last = [tokens[place] if place < len(tokens) else None for tokens in (plain, other)]
        return Divergence(name, place, last[0], last[1], None, None, None, tie=False)
    text = [*prompt, *plain[:place]]
    ours = plain[place]
    theirs = other[place]
    logits = logits_after(target, text)
    wanted = noisy(logits, sampling, len(text))
    gap = float(wanted[ours] - wanted[theirs])
    tie = abs(gap) <= slack_of(target, text)
    return Divergence(
        name, place, ours, theirs, float(logits[ours]), float(logits[theirs]), gap, tie
    )


def slack_of(target: Backend, text: Sequence[int]) -> float:
    """Change of the gap of two logits that rounding explains; zero if passes agree bit by bit."""
    known = SLACK.get(target.info.dtype)
    return 2 * largest_logit_change(target, text) if known is None else known


def largest_logit_change(target: Backend, text: Sequence[int]) -> float:
    """Largest change of a logit between a pass over many rows and passes over one row."""
    start, end = text[:-TRIED], text[-TRIED:]
    line = Tree(end[0], capacity=len(end))
    for node, token in enumerate(end[1:]):
        line.add(node, token, 1.0, sampled=True)
    once = target.open(start)
    singly = target.open(start)
    try:
        [together] = target.score([TreeInput(once, line)])
        moved = 0.0
        for row, token in enumerate(end):
            [alone] = target.score([TreeInput(singly, Tree(token))])
            moved = max(moved, float(np.abs(together.logits(row) - alone.logits(0)).max()))
            singly.commit([0])
        return moved
    finally:
        once.close()
        singly.close()


def logits_after(target: Backend, text: Sequence[int]) -> FloatArray:
    """Logits after this text in a pass over one row, float64 [vocab]."""
    session = target.open(text[:-1])
    try:
        [scores] = target.score([TreeInput(session, Tree(text[-1]))])
        return scores.logits(0).astype(np.float64)
    finally:
        session.close()


def noisy(logits: FloatArray, sampling: Sampling, position: int) -> FloatArray:
    """Logits plus sampling noise: their argmax is the token plain decoding emits here."""
    if sampling.greedy:
        return logits
    noise = KeyedRng(sampling.seed).noise(NoiseKey(position), len(logits))
    return logits - sampling.temperature * np.log(-np.log(noise))

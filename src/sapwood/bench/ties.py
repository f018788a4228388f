"""Why an output differs from plain decoding's: the two tokens where they part, and what the target gave each.

A pass over a tree and a pass over one token add the same numbers in another order, so two tokens
that the target likes equally may swap. The target reads the common text once more, and the gap
between the two tokens tells such a tie from a fault. How far rounding may move the gap is known for
the common number formats and measured on the text itself for others, such as quantised weights.
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
TRIED = 12  # last tokens of a text on which another format's rounding is measured


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
    tie = abs(gap) <= slack_of(target, text)
    return Divergence(name, place, ours, theirs, float(logits[ours]), float(logits[theirs]), gap, tie)


def slack_of(target: Backend, text: Sequence[int]) -> float:
    """How far rounding may move the gap of two logits; zero where passes of any size agree to the last bit."""
    known = SLACK.get(target.info.dtype)
    return 2 * movement(target, text) if known is None else known


def movement(target: Backend, text: Sequence[int]) -> float:
    """How far one logit moves between passes over one row and a pass over many, at the end of this text."""
    start, end = text[:-TRIED], text[-TRIED:]
    line = Tree(end[0], capacity=len(end))
    for node, token in enumerate(end[1:]):
        line.add(node, token, 1.0, sampled=True)
    once, singly = target.open(start), target.open(start)
    try:
        [together] = target.score([Work(once, line)])
        moved = 0.0
        for row, token in enumerate(end):
            [alone] = target.score([Work(singly, Tree(token))])
            moved = max(moved, float(np.abs(together.logits(row) - alone.logits(0)).max()))
            singly.commit([0])
        return moved
    finally:
        once.close()
        singly.close()


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

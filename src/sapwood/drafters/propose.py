"""Adds children from draft probs q, by each of the four kinds of draws."""

import numpy as np

from sapwood.core.array_types import FloatArray
from sapwood.core.rng import NoiseKey, NoiseUse, Rng, path_key
from sapwood.core.sampling import Sampler, without
from sapwood.core.tree import CAPACITY, Tree
from sapwood.core.types import Draw
from sapwood.errors import Unsound

SURE = 0.25  # mixed draws: tokens of at least this probability are chosen, the rest drawn


def propose(
    tree: Tree,
    node: int,
    probs: FloatArray,
    width: int,
    draws: Draw,
    position: int,
    rng: Rng,
    source: int,
) -> None:
    """Add up to `width` children of `node`; `position` is the absolute position of the child."""
    if draws is Draw.TOPK:
        if tree.keeps_probs:
            tree.proposals[node, source] = probs
        best = leaders(probs, width)
        tree.extend(node, best, probs[best].tolist(), source=source)
        return
    taken = [int(tree.tokens[child]) for child in tree.children(node) if not tree.sampled[child]]
    if draws is Draw.MIXED:
        sure = [token for token in leaders(probs, width - 1) if probs[token] >= SURE]
        tree.extend(node, sure, probs[sure].tolist(), source=source)
        taken = taken + sure
        width = width - len(sure)
    rest = probs if draws is Draw.IID else without(probs, taken)
    tree.proposals[node, source] = rest
    path = branch(tree, node)
    for slot in range(width):
        if not rest.any():  # every token of positive probability is a child already
            break
        token = rng.pick(rest, NoiseKey(position, NoiseUse.DRAFT, slot + CAPACITY * source, path))
        tree.add(node, token, float(rest[token]), rank=slot, source=source, sampled=True)
        if draws is not Draw.IID:
            rest = without(rest, [token])


def branch(tree: Tree, node: int) -> int:
    """Key of a branch: twins that carry the same token still draw their children independently."""
    path = tree.path(node)[1:]
    return path_key(
        np.stack([tree.tokens[path], tree.ranks[path], tree.sources[path]], axis=1).ravel().tolist()
    )


def kind(draws: Draw, sampler: Sampler) -> Draw:
    """The kind of draws of a request; greedy decoding always chooses the best tokens."""
    return Draw.TOPK if sampler.sampling.greedy else draws


def covering(kinds: set[Draw], who: object) -> Draw:
    """The kind that covers all of these in one tree; iid draws cannot be mixed with others."""
    if len(kinds) < 2:
        return next(iter(kinds))
    if Draw.IID in kinds:
        raise Unsound(
            f"{who} mixes iid draws with others; use draws=swor, or draws=iid in every drafter"
        )
    return Draw.MIXED


def ranks_do(tree: Tree, draws: Draw, sampler: Sampler) -> bool:
    """True when the best tokens are enough: no draws, no logit changes, no use of whole probs."""
    return (
        kind(draws, sampler) is Draw.TOPK
        and not sampler.sampling.touches_logits
        and not tree.keeps_probs
    )


def leaders(probs: FloatArray, count: int) -> list[int]:
    """The most likely tokens of positive probability, best first, lowest id first in a tie."""
    if count <= 0:
        return []
    # sorting all would take ten times as long
    least = np.partition(probs, -count)[-count] if count < len(probs) else 0.0
    among = np.flatnonzero((probs >= least) & (probs > 0))
    best: list[int] = among[np.argsort(-probs[among], kind="stable")[:count]].tolist()
    return best

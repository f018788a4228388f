"""Add children drawn from a law q, in each of the four ways the verifiers know."""

import numpy as np

from sapwood.arrays import FloatArray
from sapwood.errors import Unsound
from sapwood.records import Draw
from sapwood.rng import Place, Rng, Use, path_key
from sapwood.sampling import Sampler, softmax, without
from sapwood.tree import CAPACITY, Tree

SURE = 0.25  # mixed draws: tokens of at least this probability are chosen, the rest drawn


def propose(
    tree: Tree, node: int, law: FloatArray, width: int, draws: Draw, position: int, rng: Rng, source: int
) -> None:
    """Add up to `width` children of `node`; `position` is the absolute position of the child token."""
    if draws is Draw.TOPK:
        if tree.keeps_laws:
            tree.laws[node, source] = law
        best = leaders(law, width)
        tree.extend(node, best, law[best].tolist(), source=source)
        return
    taken = [int(tree.tokens[child]) for child in tree.children(node) if not tree.sampled[child]]
    if draws is Draw.MIXED:
        sure = [token for token in leaders(law, width - 1) if law[token] >= SURE]
        tree.extend(node, sure, law[sure].tolist(), source=source)
        taken, width = taken + sure, width - len(sure)
    rest = law if draws is Draw.IID else without(law, taken)
    tree.laws[node, source] = rest
    path = branch(tree, node)
    for slot in range(width):
        if not rest.any():  # every token of positive probability is a child already
            break
        token = rng.pick(rest, Place(position, Use.DRAFT, slot + CAPACITY * source, path))
        tree.add(node, token, float(rest[token]), rank=slot, source=source, sampled=True)
        if draws is not Draw.IID:
            rest = without(rest, [token])


def branch(tree: Tree, node: int) -> int:
    """Key of a branch: twins that carry the same token still draw their children independently."""
    path = tree.path(node)[1:]
    return path_key(np.stack([tree.tokens[path], tree.ranks[path], tree.sources[path]], axis=1).ravel().tolist())


def kind(draws: Draw, sampler: Sampler) -> Draw:
    """Greedy decoding has nothing to draw: the best tokens are chosen, whatever the drafter's kind."""
    return Draw.TOPK if sampler.sampling.greedy else draws


def covering(kinds: set[Draw], who: object) -> Draw:
    """The kind that covers all of these in one tree; independent draws mix with nothing else."""
    if len(kinds) < 2:
        return next(iter(kinds))
    if Draw.IID in kinds:
        raise Unsound(f"{who} mixes iid draws with others; use draws=swor, or draws=iid in every drafter")
    return Draw.MIXED


def ranks_do(tree: Tree, draws: Draw, sampler: Sampler) -> bool:
    """True where best tokens are all that is wanted: nothing is drawn, no logit changes, nobody reads the law."""
    return kind(draws, sampler) is Draw.TOPK and not sampler.sampling.touches_logits and not tree.keeps_laws


def draft_law(sampler: Sampler, logits: FloatArray, path: list[int]) -> FloatArray:
    """Law q after the request's own sampling along the path; the whole softmax where decoding is greedy."""
    if sampler.sampling.greedy:
        return softmax(sampler.adjust(logits, path))
    return sampler.law(logits, path)


def leaders(law: FloatArray, count: int) -> list[int]:
    """The most likely tokens of positive probability, best first, lowest id first in a tie."""
    if count <= 0:
        return []
    least = np.partition(law, -count)[-count] if count < len(law) else 0.0  # a sort of all would take ten times as long
    among = np.flatnonzero((law >= least) & (law > 0))
    best: list[int] = among[np.argsort(-law[among], kind="stable")[:count]].tolist()
    return best

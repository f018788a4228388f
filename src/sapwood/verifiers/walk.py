"""The walks from the root that the top-down rules share, and the arithmetic of residuals."""

from collections.abc import Callable

import numpy as np

from sapwood.arrays import FloatArray
from sapwood.protocols import Laws
from sapwood.records import Verdict
from sapwood.rng import Place, Rng, Use
from sapwood.sampling import without
from sapwood.tree import ROOT, Tree

# (tree, node, p, position of the next token, rng) -> (accepted child or None, next token)
Step = Callable[[Tree, int, FloatArray, int, Rng], tuple[int | None, int]]


def follow(tree: Tree, laws: Laws, position: int, rng: Rng) -> Verdict:
    """Take the target's own token at each node and follow it while the tree holds it."""
    at_once = getattr(laws, "follow", None)
    verdict: Verdict | None = None if at_once is None else at_once(position, rng)
    if verdict is not None:
        return verdict
    path = [ROOT]
    while True:
        token = laws.draw(path[-1], position + len(path), rng)
        child = tree.child(path[-1], token)
        if child is None:
            return Verdict(tuple(path), token)
        path.append(child)


def walk(tree: Tree, laws: Laws, position: int, rng: Rng, step: Step) -> Verdict:
    """Go down while the rule accepts a child; the token that ends the walk is the bonus."""
    if laws.greedy:  # p is one-hot: every rule is the greedy walk
        return follow(tree, laws, position, rng)
    path = [ROOT]
    while True:
        child, token = step(tree, path[-1], laws.law(path[-1]), position + len(path), rng)
        if child is None:
            return Verdict(tuple(path), token)
        path.append(child)


def refuse_in_turn(
    tree: Tree, children: list[int], p: FloatArray, position: int, rng: Rng, *, replacement: bool
) -> tuple[int | None, FloatArray]:
    """Test sampled children in draw order; return the accepted one, or None, and the residual r.

    1. Child x, drawn from q, is accepted with chance min(1, r(x) / q(x)), where r starts as p.
    2. A refusal leaves r = norm((r - q)+).
    3. Drawn without replacement, the next child's q has lost x and is renormalised.
    Children of several sources carry a q each.
    """
    r = p
    laws: dict[int, FloatArray] = {}  # source -> its present q
    for slot, child in enumerate(children):
        token, source = int(tree.tokens[child]), int(tree.sources[child])
        q = laws[source] if source in laws else tree.law(int(tree.parents[child]), child)
        chance = r[token] / q[token] if r[token] < q[token] else float(r[token] > 0)
        if rng.flip(chance, Place(position, Use.ACCEPT, slot)):
            return child, r
        r = residual(r, q)
        laws[source] = q if replacement else without(q, [token])
    return None, r


def in_turn(*, replacement: bool, most: int | None = None) -> Step:
    """The rule that tests sampled children in turn, at most the first `most` of them."""

    def step(tree: Tree, node: int, p: FloatArray, position: int, rng: Rng) -> tuple[int | None, int]:
        children = tree.children(node)[:most]
        child, rest = refuse_in_turn(tree, children, p, position, rng, replacement=replacement)
        return (child, -1) if child is not None else (None, rng.pick(rest, Place(position)))

    return step


def residual(r: FloatArray, q: FloatArray) -> FloatArray:
    """norm((r - q)+); r itself where nothing is left, which only rounding can cause."""
    rest: FloatArray = np.maximum(r - q, 0.0)
    total = rest.sum()
    return rest / total if total > 0 else r

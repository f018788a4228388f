"""The walks from the root that the top-down rules share, and the arithmetic of residuals."""

from collections.abc import Callable, Iterator

import numpy as np

from sapwood.arrays import FloatArray
from sapwood.errors import SapwoodError
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
    for slot, (child, q) in enumerate(drawn_from(tree, children, replacement=replacement)):
        token = int(tree.tokens[child])
        chance = r[token] / q[token] if r[token] < q[token] else float(r[token] > 0)
        if rng.flip(chance, Place(position, Use.ACCEPT, slot)):
            return child, r
        r = residual(r, q)
    return None, r


def drawn_from(tree: Tree, children: list[int], *, replacement: bool) -> Iterator[tuple[int, FloatArray]]:
    """Sampled siblings in draw order, each with the law it was drawn from given those before it."""
    laws: dict[int, FloatArray] = {}  # source -> its present q
    for child in children:
        source = int(tree.sources[child])
        q = laws[source] if source in laws else tree.law(int(tree.parents[child]), child)
        yield child, q
        laws[source] = q if replacement else without(q, [int(tree.tokens[child])])


def in_turn(*, replacement: bool, most: int | None = None) -> Step:
    """The rule that tests sampled children in turn, at most the first `most` of them."""

    def step(tree: Tree, node: int, p: FloatArray, position: int, rng: Rng) -> tuple[int | None, int]:
        children = tree.children(node)[:most]
        child, rest = refuse_in_turn(tree, children, p, position, rng, replacement=replacement)
        return (child, -1) if child is not None else (None, rng.pick(rest, Place(position)))

    return step


def check_shape(name: str, shape: list[int]) -> None:
    """Refuse a shape that is no list of children."""
    if not shape or min(shape) < 1:
        raise SapwoodError(f"shape of {name} must list the children of a node by level, each at least 1, not {shape}")


def of_level(shape: list[int], depth: int) -> int:
    """The children that a shape foresees for a node at this depth; its last number holds for all deeper ones."""
    return shape[min(depth, len(shape) - 1)]


def residual(r: FloatArray, q: FloatArray) -> FloatArray:
    """norm((r - q)+); r itself where nothing is left, which only rounding can cause."""
    return norm(r - q, r)


def norm(rest: FloatArray, otherwise: FloatArray) -> FloatArray:
    """The positive part of what is left, as a law; another law where nothing is left, which only rounding can cause."""
    positive: FloatArray = np.maximum(rest, 0.0)
    total = positive.sum()
    return positive / total if total > 0 else otherwise


def credit(chance: float, p: FloatArray, q: FloatArray, token: int) -> float:
    """Chance to keep a path and one more token drawn from q, where the path itself is kept with this chance."""
    wanted = chance * p[token]
    return float(wanted / q[token]) if wanted < q[token] else 1.0


def excess(chance: float, p: FloatArray, q: FloatArray) -> tuple[float, FloatArray]:
    """After what followed a path was given up: the new chance to keep the path, and the law of what follows it.

    The path was kept with `chance` and followed by a token drawn from q, which claims min(chance p, q). What is
    left of chance p has mass S, out of S + 1 - chance that was not claimed.
    """
    rest: FloatArray = np.maximum(chance * p - q, 0.0)
    total = float(rest.sum())
    if total <= 0:  # all was claimed: only rounding can ask again, and only a path kept for sure must answer
        return float(chance >= 1), p
    return total / (total + 1.0 - chance), rest / total

"""Top-down walks shared by verifiers, and the arithmetic of residuals."""

from collections.abc import Callable, Iterator

import numpy as np

from sapwood.core.array_types import FloatArray
from sapwood.core.part import Part
from sapwood.core.protocols import TargetProbs
from sapwood.core.rng import NoiseKey, NoiseUse, Rng
from sapwood.core.sampling import without
from sapwood.core.tree import ROOT, Tree
from sapwood.core.types import Verdict
from sapwood.errors import SapwoodError
from sapwood.verifiers.match import follow

# (tree, node, p, position of the next token, rng) -> (accepted child or None, next token)
Step = Callable[[Tree, int, FloatArray, int, Rng], tuple[int | None, int]]


class GreedyWalk(Part):
    """Base of rules that follow the target's own tokens at temperature 0."""

    def follows(self, target: TargetProbs) -> bool:
        """True at temperature 0."""
        return target.greedy


def walk(tree: Tree, target: TargetProbs, position: int, rng: Rng, step: Step) -> Verdict:
    """Go down while the rule accepts a child; the token that ends the walk is the bonus."""
    if target.greedy:  # p is one-hot: every rule is the greedy walk
        return follow(tree, target, position, rng)
    path = [ROOT]
    while True:
        child, token = step(tree, path[-1], target.probs(path[-1]), position + len(path), rng)
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
        if rng.flip(chance, NoiseKey(position, NoiseUse.ACCEPT, slot)):
            return child, r
        r = residual(r, q)
    return None, r


def drawn_from(
    tree: Tree, children: list[int], *, replacement: bool
) -> Iterator[tuple[int, FloatArray]]:
    """Sampled siblings in draw order, each with the probs it was drawn from given earlier ones."""
    target: dict[int, FloatArray] = {}  # source -> its present q
    for child in children:
        source = int(tree.sources[child])
        q = target[source] if source in target else tree.proposal(int(tree.parents[child]), child)
        yield child, q
        target[source] = q if replacement else without(q, [int(tree.tokens[child])])


def in_turn(*, replacement: bool, most: int | None = None) -> Step:
    """The rule that tests sampled children in turn, at most the first `most` of them."""

    def step(
        tree: Tree, node: int, p: FloatArray, position: int, rng: Rng
    ) -> tuple[int | None, int]:
        children = tree.children(node)[:most]
        child, rest = refuse_in_turn(tree, children, p, position, rng, replacement=replacement)
        return (child, -1) if child is not None else (None, rng.pick(rest, NoiseKey(position)))

    return step


def check_shape(name: str, shape: list[int]) -> None:
    """Raise an error if `shape` is not a list of positive numbers of children."""
    if not shape or min(shape) < 1:
        raise SapwoodError(
            f"shape of {name} must list the children of a node by level, each at least 1, "
            f"not {shape}"
        )


def of_level(shape: list[int], depth: int) -> int:
    """Number of children of a node at this depth; the last of `shape` holds for deeper ones."""
    return shape[min(depth, len(shape) - 1)]


def residual(r: FloatArray, q: FloatArray) -> FloatArray:
    """norm((r - q)+); r itself where nothing is left, which only rounding can cause."""
    return norm(r - q, r)


def norm(rest: FloatArray, otherwise: FloatArray) -> FloatArray:
    """The normalised positive part of `rest`; `otherwise` if it is empty, by rounding."""
    positive: FloatArray = np.maximum(rest, 0.0)
    total = positive.sum()
    return positive / total if total > 0 else otherwise


def credit(chance: float, p: FloatArray, q: FloatArray, token: int) -> float:
    """Chance to keep a path and one more token drawn from q, given the chance of the path."""
    wanted = chance * p[token]
    return float(wanted / q[token]) if wanted < q[token] else 1.0


def excess(chance: float, p: FloatArray, q: FloatArray) -> tuple[float, FloatArray]:
    """Chance to keep a path after its next token was refused, and the probs of the token then.

    The path was kept with `chance` and followed by a token drawn from q, which claims min(chance p,
    q). What is left of chance p has mass S, out of S + 1 - chance that was not claimed.
    """
    rest: FloatArray = np.maximum(chance * p - q, 0.0)
    total = float(rest.sum())
    # all was claimed: only rounding leads here, and only a path of chance 1 must be kept
    if total <= 0:
        return float(chance >= 1), p
    return total / (total + 1.0 - chance), rest / total

"""Building blocks of the backend checks: two ways to the same context, and their comparison."""

from collections.abc import Callable, Sequence

import numpy as np

from sapwood.core.array_types import FloatArray
from sapwood.core.protocols import Backend, Session, TargetOutput, TreeInput
from sapwood.core.tree import Tree

Check = Callable[[Backend, np.random.Generator, float], None]


def text(backend: Backend, rng: np.random.Generator, count: int) -> list[int]:
    """Random tokens."""
    return [int(token) for token in rng.integers(0, backend.info.vocab, count)]


def prompt(backend: Backend, rng: np.random.Generator) -> list[int]:
    """A random text that leaves room for a tree."""
    return text(backend, rng, int(rng.integers(4, min(24, backend.info.context // 2))))


def random_tree(backend: Backend, rng: np.random.Generator, nodes: int = 14) -> Tree:
    """A tree whose shape and tokens are random; siblings may carry the same token."""
    tree = Tree(*text(backend, rng, 1))
    for node, token in enumerate(text(backend, rng, nodes - 1), 1):
        tree.add(int(rng.integers(max(0, node - 6), node)), token, 1.0, sampled=True)
    return tree


def line(tokens: Sequence[int]) -> Tree:
    """A tree that is one path."""
    tree = Tree(tokens[0])
    for parent, token in enumerate(tokens[1:]):
        tree.add(parent, token, 1.0, sampled=True)
    return tree


def table(scores: TargetOutput, count: int) -> FloatArray:
    """Log probs of the first `count` rows, [count, vocab]: logits are free up to a constant."""
    rows = np.stack([scores.logits(row) for row in range(count)]).astype(np.float64)
    rows -= rows.max(axis=1, keepdims=True)
    probs: FloatArray = rows - np.log(np.exp(rows).sum(axis=1, keepdims=True))
    return probs


def run(backend: Backend, session: Session, tree: Tree, since: int = 0) -> FloatArray:
    """One pass over one tree, as log probs."""
    [scores] = backend.score([TreeInput(session, tree, since)])
    return table(scores, len(tree) - since)


def after(backend: Backend, tokens: Sequence[int]) -> FloatArray:
    """Log probs after a text, by a new session that scores only the last token."""
    session = backend.open(tokens[:-1])
    [probs] = run(backend, session, Tree(tokens[-1]))
    session.close()
    return np.asarray(probs)


def agree(found: FloatArray, wanted: FloatArray, tolerance: float, promise: str) -> None:
    """Fail, naming the rule, if two tables differ by more than the tolerance."""
    gap = float(np.abs(found - wanted).max())
    assert gap <= tolerance, f"{promise}: log probs differ by {gap:.3g}, more than {tolerance:.3g}"


def refuses(action: Callable[[], object], promise: str) -> None:
    """Fail, naming the rule, if an action raises nothing."""
    try:
        action()
    except (ValueError, TypeError):
        return
    raise AssertionError(promise)

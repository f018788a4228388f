"""A drafter with random probabilities that a seed decides, and trees grown from it."""

from typing import Any

import numpy as np
from hypothesis import strategies as st

from sapwood.backends.toy import ToyBackend
from sapwood.common.rank_table import Ranks
from sapwood.core.array_types import FloatArray
from sapwood.core.part import Part
from sapwood.core.protocols import Drafter, EngineContext, Frontier, RequestContext
from sapwood.core.rng import KeyedRng, Rng
from sapwood.core.sampling import Sampler, Sampling
from sapwood.core.tree import Tree
from sapwood.core.types import Budget, Draw
from sapwood.engine.cost_model import flat
from sapwood.engine.loop import no_loader
from sapwood.engine.request_decoder import grow

SEEDS = st.integers(0, 10_000)
EXACT = 1e-12


class Oracle(Part):
    """A drafter whose law after a path is a function of the path alone; draws are fixed by the seed."""

    needs: frozenset[str] = frozenset()

    def __init__(self, seed: int, vocab: int = 3, *, sampled: bool = False) -> None:
        self.seed = seed
        self.vocab = vocab
        self.sampled = sampled
        self.calls = 0
        self.asked = 0
        self.draws = Draw.SWOR if sampled else Draw.TOPK

    def probs(self, path: tuple[int, ...]) -> FloatArray:
        """Chances after a path, [vocab]; a part of the mass is on tokens that are never proposed."""
        return np.random.default_rng([self.seed, *path]).dirichlet(np.full(self.vocab + 1, 0.6))[
            :-1
        ]

    def order(self, path: tuple[int, ...]) -> list[int]:
        """Tokens in the order of their ranks, or as drawn without replacement."""
        probs = self.probs(path)
        noise = np.random.default_rng([1, self.seed, *path]).random(self.vocab)
        keys = np.log(noise) / probs if self.sampled else probs
        found: list[int] = np.argsort(-keys, kind="stable").tolist()
        return found

    def turns(self, path: tuple[int, ...]) -> list[tuple[int, float]]:
        """(token, its probability at its turn)."""
        probs = self.probs(path)
        left = 1.0
        found = []
        for token in self.order(path):
            found.append((token, probs[token] / left if self.sampled else probs[token]))
            left -= probs[token]
        return found

    def expand(self, tree: Tree, frontier: Frontier, rng: Rng) -> None:
        """Children of each node, as many as asked for."""
        self.calls += 1
        for node, most in frontier:
            self.asked += 1
            for rank, (token, prob) in enumerate(self.turns(tuple(tree.spell(node)[1:]))[:most]):
                tree.add(node, token, min(float(prob), 1.0), rank=rank, sampled=self.sampled)


def run(policy: Any, drafter: Drafter, budget: Budget) -> Tree:
    policy.bind(EngineContext(ToyBackend(), flat(), no_loader))
    policy.reset(request())
    return policy.prune(grow(0, drafter, policy, budget, KeyedRng(0)), budget)  # type: ignore[no-any-return]


def request(sampling: Sampling | None = None) -> RequestContext:
    return RequestContext(
        [0], Sampler(sampling or Sampling(temperature=1.0), [0]), ToyBackend().open([])
    )


def paths(tree: Tree) -> set[Ranks]:
    """The nodes of a tree, by their tokens."""
    return {tuple(tree.spell(node)[1:]) for node in range(1, len(tree))}


def reaches(oracle: Oracle, depth: int, fade: float = 1.0) -> dict[Ranks, float]:
    """Path probability of every node of the whole tree."""
    found: dict[Ranks, float] = {(): 1.0}
    for length in range(depth):
        for path in [path for path in found if len(path) == length]:
            found |= {
                (*path, token): found[path] * prob * fade
                for token, prob in enumerate(oracle.probs(path))
            }
    del found[()]
    return found

"""Recipes on the toy target for one verifier and one shape of tree."""

import itertools
from typing import Any

import numpy as np

from sapwood.backends.toy import ToyBackend, probs_after
from sapwood.controllers.fixed import Fixed
from sapwood.core.array_types import FloatArray
from sapwood.core.types import Draw
from sapwood.drafters.compose.draft_model import DraftModel
from sapwood.policies.static import Static
from sapwood.recipe import Recipe
from sapwood.testing import expected_tokens

EXACT = 1e-12
PROMPT = (0, 1, 2)


def recipe(
    draws: Draw, verifier: Any, shape: list[int], draft: str = "draft", vocab: int = 3
) -> Recipe:
    """A fixed tree of a toy draft model."""
    drafter = DraftModel(model=ToyBackend(draft, vocab=vocab), draws=draws)
    return Recipe(
        drafter, Static(shape=shape), verifier, Fixed(nodes=20, depth=len(shape), width=max(shape))
    )


def laws_of(pair: int, vocab: int = 4) -> tuple[FloatArray, FloatArray]:
    """p and q at the root of a random pair of toys."""
    return probs_after(f"target {pair}", vocab, PROMPT), probs_after(f"draft {pair}", vocab, PROMPT)


def accepted(draws: Draw, verifier: Any, pair: int, width: int = 2, vocab: int = 4) -> float:
    """Chance that one of `width` children is accepted."""
    return (
        expected_tokens(
            recipe(draws, verifier, [width], f"draft {pair}", vocab),
            ToyBackend(f"target {pair}", vocab),
        )
        - 1
    )


def chance_within(q: FloatArray, held: tuple[int, ...], draws: int, replacement: bool) -> float:
    """Chance that all draws fall into a set of tokens."""
    if not draws:
        return 1.0
    if replacement:
        return float(q[list(held)].sum() ** draws)
    total = 0.0
    for token in held:
        later = np.where(np.arange(len(q)) == token, 0.0, q)
        left = tuple(other for other in held if other != token)
        total += float(q[token]) * chance_within(later / later.sum(), left, draws - 1, replacement)
    return total


def best_possible(p: FloatArray, q: FloatArray, draws: int, replacement: bool) -> float:
    """The optimum by duality: 1 + min over sets H of p(H) - chance that all draws are in H."""
    tokens = range(len(p))
    sets = itertools.chain.from_iterable(
        itertools.combinations(tokens, size) for size in range(len(p) + 1)
    )
    return 1 + min(
        float(p[list(held)].sum()) - chance_within(q, held, draws, replacement) for held in sets
    )

"""Block verification keeps what the paper says, and traversal agrees with it on chains."""

import itertools
from typing import Any

import numpy as np
import pytest

from sapwood.backends.toy import ToyBackend, probs_after
from sapwood.core.types import Draw
from sapwood.testing import expected_tokens
from sapwood.verifiers.block import Block
from sapwood.verifiers.traversal import Traversal
from sapwood.verifiers.traversal_iid import TraversalIid
from tests.helpers.verifier_recipes import PROMPT, recipe


def kept_by_block(pair: int, length: int) -> float:
    """Mean length that block verification keeps, by the paper's formula over every chain."""
    total = 0.0
    for chain in itertools.product(range(3), repeat=length):
        ps = [probs_after(f"target {pair}", 3, (*PROMPT, *chain[:i])) for i in range(length)]
        qs = [probs_after(f"draft {pair}", 3, (*PROMPT, *chain[:i])) for i in range(length)]
        weight = 1.0
        chances = [1.0]
        for p, q, token in zip(ps, qs, chain, strict=True):
            weight *= q[token]
            chances.append(min(1.0, chances[-1] * p[token] / q[token]))
        missed = 1.0
        for size in range(length, 0, -1):
            if size == length:
                keep = chances[size]
            else:
                excess = np.maximum(chances[size] * ps[size] - qs[size], 0).sum()
                keep = excess / (excess + 1 - chances[size])
            total += weight * missed * keep * size
            missed *= 1 - keep
    return total


def chained(verifier: Any, pair: int, length: int, draws: Draw = Draw.IID) -> float:
    """Tokens that a round brings on a chain."""
    return expected_tokens(
        recipe(draws, verifier, [1] * length, f"draft {pair}"), ToyBackend(f"target {pair}")
    )


@pytest.mark.parametrize("pair", range(5))
def test_block_keeps_what_the_paper_says_and_traversal_agrees_on_chains(pair: int) -> None:
    found = chained(Block(), pair, 3)
    assert found == pytest.approx(1 + kept_by_block(pair, 3), abs=1e-10)
    assert found == pytest.approx(chained(TraversalIid(), pair, 3), abs=1e-10)
    assert found == pytest.approx(chained(Traversal(), pair, 3, Draw.SWOR), abs=1e-10)

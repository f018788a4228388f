"""Jacobi decoding is fixed-point iteration."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from sapwood.backends.toy import ToyBackend
from sapwood.controllers.fixed import Fixed
from sapwood.core.rng import KeyedRng
from sapwood.drafters.lookup.jacobi import Jacobi
from sapwood.drafters.lookup.token_chains import random_tokens
from sapwood.engine.loop import Engine
from sapwood.policies.chain import Chain
from sapwood.recipe import Recipe
from sapwood.verifiers.match import Match
from tests.helpers.decoded_trees import GREEDY, PROMPT, best, played


@dataclass
class SlowJacobi:
    """Fixed-point iteration over a list: no tree, no session."""

    length: int
    shift: int = 0  # of the answers against their positions; anything but 0 is a mistake

    def rounds(self) -> Iterator[tuple[list[int], list[int]]]:
        """(emitted, next guesses) of each pass."""
        text = list(PROMPT)
        guesses = random_tokens(PROMPT, len(PROMPT), self.length)
        while True:
            answers = [best(*text, *guesses[:place]) for place in range(self.length + 1)]
            right = 0
            while right < self.length and answers[right] == guesses[right]:
                right += 1
            text += answers[: right + 1]
            known = answers[right + 1 + self.shift :][: self.length]
            guesses = known + random_tokens(
                PROMPT, len(text) + len(known), self.length - len(known)
            )
            yield answers[: right + 1], guesses


@pytest.mark.parametrize("length", [1, 2, 5, 9])
def test_jacobi_is_fixed_point_iteration(length: int) -> None:
    recipe = Recipe(
        Jacobi(length=length), Chain(), Match(), Fixed(nodes=length, depth=length, width=1)
    )
    slow = SlowJacobi(length).rounds()
    for outcome, state in played(recipe):
        assert (outcome.tokens, state["drafted_"]) == next(slow)


@pytest.mark.parametrize("shift", [-1, 1])
def test_answers_at_other_positions_would_be_noticed(shift: int) -> None:
    recipe = Recipe(Jacobi(length=5), Chain(), Match(), Fixed(nodes=5, depth=5, width=1))
    slow = SlowJacobi(5, shift).rounds()
    assert any(
        (outcome.tokens, state["drafted_"]) != next(slow) for outcome, state in played(recipe)
    )


def test_jacobi_finds_the_fixed_point_of_a_target_that_repeats_itself() -> None:
    class Counter(ToyBackend):
        """Says one more than the last token, whatever came before."""

        def scores(self, contexts: Any) -> Any:
            scores = super().scores(contexts)
            for row, context in zip(scores.rows, contexts, strict=True):
                row[:] = -9.0
                row[(context[-1] + 1) % self.vocab] = 0.0
            return scores

    recipe = Recipe(Jacobi(length=6), Chain(), Match(), Fixed(nodes=6, depth=6, width=1))
    running = Engine(Counter("wide", vocab=5), recipe).rounds(PROMPT, GREEDY, KeyedRng(0))
    sizes = [len(next(running).tokens) for _ in range(12)]
    running.close()
    assert (
        sum(sizes) > 12
    )  # answers to wrong guesses come right from the left, more than one in a pass

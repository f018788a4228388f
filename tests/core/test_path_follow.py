"""When the scores themselves may walk a tree, and what they are told about noise."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from sapwood.backends.toy import ToyOutput
from sapwood.core.rng import KeyedRng, NoiseKey
from sapwood.core.sampling import Sampler, Sampling
from sapwood.core.target_probs import PathProbs
from sapwood.core.tree import Tree
from sapwood.core.types import Verdict
from sapwood.testing.exact import Enumerator
from sapwood.verifiers.match import follow

TREE = Tree(0)
TREE.add(0, 1, 0.5)


class Walker(ToyOutput):
    """Scores that walk a tree at once, and note how they were asked."""

    answer: tuple[tuple[int, ...], int] | None = ((0, 1), 2)

    def follow(self, tree: Tree, temperature: float, key: Callable[[int], int]) -> Any:
        self.asked = (tree, temperature, [key(depth) for depth in range(3)])
        return self.answer


def seen(sampling: Sampling) -> tuple[PathProbs, Walker]:
    scores = Walker(np.zeros((2, 3)))
    return PathProbs(TREE, scores, Sampler(sampling, [0])), scores


def test_a_greedy_walk_has_no_noise() -> None:
    probs, scores = seen(Sampling(temperature=0.0))
    assert probs.follow(7, KeyedRng(3)) == Verdict((0, 1), 2)
    assert scores.asked == (TREE, 0.0, [0, 0, 0])


def test_a_sampled_walk_has_the_noise_of_its_positions() -> None:
    rng = KeyedRng(3)
    probs, scores = seen(Sampling(temperature=0.5))
    assert probs.follow(7, rng) == Verdict((0, 1), 2)
    keys = [rng.key(NoiseKey(position)) for position in (8, 9, 10)]
    assert scores.asked == (TREE, 0.5, keys)


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 1.0, "top_k": 2},
        {"temperature": 1.0, "top_p": 0.9},
        {"temperature": 1.0, "min_p": 0.1},
        {"temperature": 0.0, "banned": [1]},
        {"temperature": 1.0, "repetition_penalty": 1.1},
    ],
    ids=str,
)
def test_what_scores_do_not_know_of_is_walked_token_by_token(options: dict[str, Any]) -> None:
    probs, scores = seen(Sampling(**options))
    assert probs.follow(7, KeyedRng(3)) is None
    assert not hasattr(scores, "asked")


def test_noise_that_has_no_key_is_drawn_token_by_token() -> None:
    probs, scores = seen(Sampling(temperature=1.0))
    assert probs.follow(7, Enumerator([])) is None
    assert not hasattr(scores, "asked")


def test_scores_may_decline_and_plain_ones_are_not_asked() -> None:
    probs, scores = seen(Sampling(temperature=0.0))
    scores.answer = None
    assert probs.follow(7, KeyedRng(3)) is None
    plain = PathProbs(TREE, ToyOutput(np.zeros((2, 3))), Sampler(Sampling(), [0]))
    assert plain.follow(7, KeyedRng(3)) is None


def test_a_verifier_takes_the_walk_of_the_scores() -> None:
    probs, scores = seen(Sampling(temperature=0.0))
    assert follow(TREE, probs, 7, KeyedRng(3)) == Verdict((0, 1), 2)
    scores.answer = None
    assert follow(TREE, probs, 7, KeyedRng(3)) == Verdict((0,), 0)

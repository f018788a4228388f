"""AdaSD: mismatches below the middle of two means are excused."""

import itertools

import numpy as np
import pytest

from sapwood.backends.toy import ToyBackend, probs_after
from sapwood.common.uncertainty import distance
from sapwood.controllers.fixed import Fixed
from sapwood.core.rng import KeyedRng
from sapwood.core.sampling import Sampling
from sapwood.core.types import Draw, Outcome
from sapwood.drafters.compose.draft_model import DraftModel
from sapwood.engine.loop import Engine
from sapwood.policies.chain import Chain
from sapwood.policies.svip import Svip
from sapwood.recipe import Recipe
from sapwood.testing import departure
from sapwood.verifiers.adasd import AdaSd
from tests.helpers.verifier_recipes import accepted, laws_of


def adasd_rounds(fade: float) -> list[Outcome]:
    """Greedy rounds of adasd on toys."""
    recipe = Recipe(
        DraftModel(model=ToyBackend("draft")), Svip(threshold=9.0), AdaSd(fade=fade), Fixed(2, 2, 1)
    )
    rounds = Engine(ToyBackend(), recipe).rounds([0, 1, 2], Sampling(max_tokens=500), KeyedRng(3))
    return list(itertools.islice(rounds, 60))


@pytest.mark.parametrize("fade", [1.0, 0.8])
def test_adasd_excuses_below_the_middle_of_two_means(fade: float) -> None:
    """Greedy rounds judged again by hand: distances of accepted and refused tokens by the exact test alone."""
    means: dict[bool, list[float]] = {True: [], False: []}
    text = [0, 1, 2]
    excused = 0

    def mean(values: list[float]) -> float:
        weights = [fade**age for age in reversed(range(len(values)))]
        return float(np.average(values, weights=weights))

    for outcome in adasd_rounds(fade):
        limit = (mean(means[True]) + mean(means[False])) / 2 if all(means.values()) else 0.0
        path = 0
        seen = list[tuple[bool, float]]()
        drafted = outcome.tree.tokens[1:].tolist()
        while path < len(drafted):
            before = (*text, *drafted[:path])
            p = probs_after("target", 3, before)
            q = probs_after("draft", 3, before)
            right = int(np.argmax(p)) == drafted[path]
            apart = distance(p, q)
            seen.append((right, apart))
            if not right and apart >= limit:
                break
            excused += not right
            path += 1
        assert outcome.verdict.accepted == path
        for right, apart in seen:
            means[right].append(apart)
        text += outcome.tokens
    assert excused > 2
    assert len(means[False]) > excused


def test_adasd_without_a_law_is_exact() -> None:
    recipe = Recipe(
        DraftModel(model=ToyBackend("draft")), Chain(), AdaSd(), Fixed(2, 2, 1)
    )  # chosen tokens, and nobody reads laws
    assert departure(recipe, sampling=Sampling(max_tokens=41), horizon=40).max() == 0


@pytest.mark.parametrize("pair", range(3))
def test_a_drawn_token_is_accepted_as_often_as_two_laws_overlap(pair: int) -> None:
    """Nothing is excused in a first round: p/q decides, not a draw of the target's own."""
    p, q = laws_of(pair)
    assert accepted(Draw.IID, AdaSd(), pair, width=1) == pytest.approx(np.minimum(p, q).sum())

"""With a TEXT verifier the seed decides the text, and the tree only how fast it comes."""

import itertools
from functools import cache

import pytest

from sapwood import registry
from sapwood.controllers.fixed import Fixed
from sapwood.core.sampling import Sampling
from sapwood.core.types import Draw, Guarantee
from tests.helpers.legal_recipes import part
from tests.helpers.part_factory import lossless_names, plain_names
from tests.helpers.toy_texts import text_of

SAMPLINGS = [
    Sampling(max_tokens=24),
    Sampling(temperature=0.8, max_tokens=24),
    Sampling(temperature=1.0, top_p=0.9, top_k=2, max_tokens=24),
    Sampling(temperature=1.0, repetition_penalty=1.5, presence_penalty=0.3, max_tokens=24),
    Sampling(repetition_penalty=1.5, max_tokens=24),
]


PAIRS = list(itertools.product(plain_names("policy"), plain_names("controller")))


@cache
def plain_text(sampling: int, seed: int) -> list[int]:
    """Plain decoding's tokens."""
    chain = part("policy", "chain")
    return text_of(chain, part("verifier", "match"), SAMPLINGS[sampling], seed, Fixed(nodes=0))


@pytest.mark.parametrize("number", range(len(PAIRS)), ids=lambda number: "-".join(PAIRS[number]))
def test_text_is_plain_decodings(number: int) -> None:
    """Every pair; samplings and kinds of draws take turns, so that each part meets each of them."""
    policy, controller = PAIRS[number]
    first = 2 * number + number // len(plain_names("controller"))
    for turn in (first, first + 1):
        sampling, seed, draws = turn % len(SAMPLINGS), turn % 2, list(Draw)[turn % len(Draw)]
        ours = text_of(
            part("policy", policy),
            part("verifier", "match"),
            SAMPLINGS[sampling],
            seed,
            part("controller", controller),
            draws,
        )
        assert ours == plain_text(sampling, seed), (SAMPLINGS[sampling], seed, draws)


@pytest.mark.parametrize("verifier", lossless_names())
def test_every_lossless_rule_is_the_greedy_walk_at_temperature_zero(verifier: str) -> None:
    rule = part("verifier", verifier)
    draws = sorted(rule.accepts, key=str)[0]  # type: ignore[attr-defined]
    assert text_of(part("policy", "static"), rule, SAMPLINGS[0], 0, draws=draws) == plain_text(0, 0)


def test_guarantees_are_declared() -> None:
    for family, name, made in registry.everything():
        if family == "verifier":
            assert made().guarantee in Guarantee, name  # type: ignore[attr-defined]

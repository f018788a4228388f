"""With a TEXT verifier the seed decides the text, and the tree only how fast it comes."""

from typing import Any

import pytest

from sapwood import methods
from sapwood.backends.toy import Toy
from sapwood.controllers.fixed import Fixed
from sapwood.drafters.model import Model
from sapwood.engine import Engine
from sapwood.recipe import Recipe
from sapwood.records import Draw, Guarantee
from sapwood.rng import Keyed
from sapwood.sampling import Sampling
from tests.parts import lossless_names, plain_names
from tests.recipes import part

LENGTH = 24
SAMPLINGS = [
    Sampling(max_tokens=32),
    Sampling(temperature=0.8, max_tokens=32),
    Sampling(temperature=1.0, top_p=0.9, top_k=2, max_tokens=32),
    Sampling(temperature=1.0, repetition_penalty=1.5, presence_penalty=0.3, max_tokens=32),
    Sampling(repetition_penalty=1.5, max_tokens=32),
]


def text_of(
    policy: Any, verifier: Any, sampling: Sampling, seed: int, controller: Any = None, draws: Draw = Draw.TOPK
) -> list[int]:
    """The first tokens of a recipe on the toy target."""
    drafter = Model(model=Toy("draft"), draws=draws)
    recipe = Recipe(drafter, policy, verifier, controller or Fixed(nodes=5, depth=3, width=2))
    text: list[int] = []
    for outcome in Engine(Toy(), recipe).rounds([0, 1, 2], sampling, Keyed(seed)):
        text += outcome.tokens
        if len(text) >= LENGTH:
            break
    return text[:LENGTH]


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=range(len(SAMPLINGS)))
@pytest.mark.parametrize("controller", plain_names("controller"))
@pytest.mark.parametrize("policy", plain_names("policy"))
def test_text_is_plain_decodings(policy: str, controller: str, sampling: Sampling) -> None:
    for seed in range(3):
        plain = text_of(part("policy", "chain"), part("verifier", "match"), sampling, seed, Fixed(nodes=0))
        for draws in Draw:
            ours = text_of(
                part("policy", policy), part("verifier", "match"), sampling, seed, part("controller", controller), draws
            )
            assert ours == plain


@pytest.mark.parametrize("verifier", lossless_names())
def test_every_lossless_rule_is_the_greedy_walk_at_temperature_zero(verifier: str) -> None:
    plain = text_of(part("policy", "chain"), part("verifier", "match"), SAMPLINGS[0], 0, Fixed(nodes=0))
    rule = part("verifier", verifier)
    draws = sorted(rule.accepts, key=str)[0]  # type: ignore[attr-defined]
    assert text_of(part("policy", "static"), rule, SAMPLINGS[0], 0, draws=draws) == plain


def test_guarantees_are_declared() -> None:
    for family, name, made in methods.everything():
        if family == "verifier":
            assert made().guarantee in Guarantee, name  # type: ignore[attr-defined]

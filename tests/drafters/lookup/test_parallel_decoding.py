"""Jacobi, lookahead and phrases: the exact law, plain text, options."""

from typing import Any

import pytest

from sapwood.backends.toy import ToyBackend
from sapwood.controllers.fixed import Fixed
from sapwood.core.rng import KeyedRng
from sapwood.core.sampling import Sampling
from sapwood.drafters.compose.merge import Merge
from sapwood.drafters.lookup.jacobi import Jacobi
from sapwood.drafters.lookup.lookahead import Lookahead
from sapwood.drafters.lookup.ngram import Ngram
from sapwood.drafters.lookup.phrases import Phrases
from sapwood.engine.loop import Engine
from sapwood.errors import SapwoodError
from sapwood.policies.chain import Chain
from sapwood.policies.keep_all import KeepAll
from sapwood.recipe import Recipe
from sapwood.testing import law_error
from sapwood.verifiers.match import Match
from tests.helpers.decoded_trees import PROMPT, TARGET


@pytest.mark.parametrize(
    "drafter", [Jacobi(length=2), Lookahead(window=2, size=3, ngrams=2), Phrases()], ids=str
)
@pytest.mark.parametrize("policy", [KeepAll(), Chain()], ids=str)
def test_the_law_is_the_targets(drafter: Any, policy: Any) -> None:
    recipe = Recipe(drafter, policy, Match(), Fixed(nodes=6, depth=3, width=3))
    assert law_error(recipe, ToyBackend("a"), rounds=2) <= 1e-12


@pytest.mark.parametrize(
    "drafter", [Jacobi(), Lookahead(), Lookahead(follow=True, prompt=True), Phrases()], ids=str
)
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_the_text_is_plain_decodings(drafter: Any, temperature: float) -> None:
    sampling = Sampling(temperature=temperature, max_tokens=60)
    texts = []
    for one, nodes in ((drafter, 0), (drafter, 30), (Merge(drafters=[Ngram(), drafter]), 30)):
        recipe = Recipe(one, KeepAll(), Match(), Fixed(nodes=nodes, depth=9, width=9))
        running = Engine(TARGET, recipe).rounds(PROMPT, sampling, KeyedRng(7))
        text: list[int] = []
        while len(text) < 40:
            text += next(running).tokens
        running.close()
        texts.append(text[:40])
    assert texts[0] == texts[1] == texts[2]


@pytest.mark.parametrize(
    "make",
    [
        lambda: Jacobi(length=0),
        lambda: Lookahead(size=2),
        lambda: Lookahead(window=0),
        lambda: Phrases(size=0),
    ],
)
def test_wrong_options_are_refused(make: Any) -> None:
    with pytest.raises(SapwoodError, match="must be at least"):
        make()

"""Attention is skipped where a layer's output points where its input does; the text stays."""

import numpy as np
import pytest

from sapwood.controllers.fixed import Fixed
from sapwood.core.rng import KeyedRng
from sapwood.core.sampling import Sampling
from sapwood.core.types import Draw
from sapwood.drafters.compose import draft_model
from sapwood.drafters.self.draft_on_the_fly import DraftOnTheFly, least_needed, similarities
from sapwood.engine.loop import Engine
from sapwood.policies.chain import Chain
from sapwood.recipe import Recipe
from sapwood.verifiers.match import Match
from sapwood.verifiers.speculative import Speculative
from tests.helpers.head_checks import law_off, misstated
from tests.helpers.self_draft_targets import PLAIN, TEXT, each_target, target


def test_the_cosine_is_that_of_neighbouring_states() -> None:
    states = np.array([[1.0, 0.0, 0.0, 2.0, 0.0, -1.0]])  # three states of width two
    assert similarities(states, 3) == pytest.approx([0.0, -1.0])
    both = np.array([[1.0, 0.0, 1.0, 0.0], [1.0, 0.0, 0.0, 1.0]])
    assert similarities(both, 2) == pytest.approx([0.5])


def test_the_most_similar_inner_layers_are_skipped() -> None:
    alike = np.array([0.99, 0.95, 0.5, 0.97, 0.96, 0.99])
    assert least_needed(alike, 0.9, 2) == [3, 4]
    assert least_needed(alike, 0.9, 9) == [1, 3, 4]
    assert least_needed(alike, 0.999, 9) == []


@each_target
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_the_text_is_plain_decodings(kind: str, temperature: float) -> None:
    backend = target(kind)
    sampling = Sampling(temperature=temperature, max_tokens=24)
    drafter = DraftOnTheFly(similarity=-1.0, share=1.0, every=2)
    recipe = Recipe(drafter, Chain(), Match(), Fixed(nodes=3, depth=3, width=1))
    found = []
    for made in (recipe, PLAIN):
        engine = Engine(backend, made)
        text = [
            token
            for outcome in engine.rounds(TEXT[:12], sampling, KeyedRng(3))
            for token in outcome.tokens
        ]
        found.append(text[:24])
    assert found[0] == found[1]


def test_the_set_follows_the_text() -> None:
    drafter = DraftOnTheFly(similarity=-1.0, share=1.0, every=1)
    engine = Engine(target("stock"), Recipe(drafter, Chain(), Match(), Fixed(2, 2, 1)))
    bound = engine.recipe.drafter
    assert isinstance(bound, DraftOnTheFly)
    next(engine.rounds(TEXT[:9], Sampling(max_tokens=9), KeyedRng(0)))
    assert bound.record.skip == (2, 4)  # both inner layers
    assert bound.record.alike is not None
    assert len(bound.record.alike) == 4


def test_the_law_is_the_targets() -> None:
    drafter = DraftOnTheFly(similarity=-1.0, share=1.0, every=1, draws=Draw.IID)
    assert law_off(drafter, Chain(), Speculative(), 1) <= 1e-12


def test_a_draft_that_states_other_probs_than_it_draws_from_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(draft_model, "propose", misstated)
    drafter = DraftOnTheFly(similarity=-1.0, share=1.0, every=1, draws=Draw.IID)
    assert law_off(drafter, Chain(), Speculative(), 1) > 1e-3

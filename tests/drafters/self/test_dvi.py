"""DVI: its text is plain decoding's, it learns the checked tokens alone, and more are accepted."""

from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch

from sapwood.common.low_rank_head import probs_of
from sapwood.controllers.fixed import Fixed
from sapwood.core.rng import KeyedRng
from sapwood.core.sampling import Sampling
from sapwood.drafters.self.dvi import Dvi
from sapwood.engine.loop import Engine
from sapwood.policies.chain import Chain
from sapwood.recipe import Recipe
from sapwood.recipes import resolve
from sapwood.verifiers.match import Match
from tests.helpers import tiny_models
from tests.helpers.engine_rounds import rounds_until, tokens_of


def recipe(**options: Any) -> Recipe:
    return Recipe(Dvi(share=0.5, **options), Chain(), Match(), Fixed(nodes=3, depth=3, width=1))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_text_is_plain_decodings(temperature: float) -> None:
    backend = tiny_models.backend("llama")
    texts = []
    for one in (recipe(warmup=4, batch=2, rate=0.1), resolve("plain")):
        rounds = rounds_until(backend, one, [5, 6, 7], 30, Sampling(temperature=temperature))
        texts.append(tokens_of(rounds)[:30])
    assert texts[0] == texts[1]


def test_tokens_up_to_the_first_rejected_one_are_learned() -> None:
    backend = tiny_models.backend("llama")
    engine = Engine(backend, recipe(batch=1000))
    drafter: Any = engine.recipe.drafter
    wanted = []
    for outcome in islice(engine.rounds([5, 6, 7, 5], Sampling(), KeyedRng(3)), 9):
        path = list(outcome.verdict.path)
        drafted = outcome.tree.tokens[1:].tolist()
        wanted += [(token, True) for token in drafted[: len(path) - 1]]
        if len(path) <= len(drafted):
            wanted.append((drafted[len(path) - 1], False))
    found = [(one.token, one.accepted) for one in drafter.checked]
    assert len(found) >= 8  # the last round is observed when another is asked for
    assert found == wanted[: len(found)]


def test_acceptance_rises_while_it_decodes() -> None:
    backend = tiny_models.backend("llama")
    accepted = []
    for rate in (0.0, 0.05):
        outcomes = list(
            rounds_until(backend, recipe(rate=rate, batch=4, warmup=40), [5, 6, 7], 160, Sampling())
        )
        late = outcomes[len(outcomes) // 2 :]
        accepted.append(np.mean([len(outcome.verdict.path) - 1 for outcome in late]))
    assert accepted[1] > accepted[0] + 0.2


def test_the_first_draft_is_the_targets_own_head_behind_its_first_layers() -> None:
    backend = tiny_models.backend("llama")
    outcome = next(iter(rounds_until(backend, recipe(), [5, 6, 7, 5], 4, Sampling())))
    with torch.no_grad():
        states = backend.model.base_model(
            torch.tensor([[5, 6, 7, 5]]), output_hidden_states=True
        ).hidden_states[1][0, -1]
        logits = backend.model.get_output_embeddings()(backend.model.base_model.norm(states))
    probs = probs_of(logits.numpy())
    assert int(outcome.grown.tokens[1]) == int(probs.argmax())
    assert float(outcome.grown.probs[1]) == pytest.approx(float(probs.max()), rel=1e-3)

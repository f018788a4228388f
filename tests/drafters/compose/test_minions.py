"""Votes: shares of the drafters' weights, which follow what was accepted."""

import numpy as np
import pytest

from sapwood.backends.toy import ToyBackend
from sapwood.controllers.fixed import Fixed
from sapwood.core.protocols import Drafter
from sapwood.core.rng import KeyedRng
from sapwood.core.sampling import Sampling
from sapwood.core.tree import ROOT, Tree
from sapwood.core.types import Draw
from sapwood.drafters.compose.draft_model import DraftModel
from sapwood.drafters.compose.minions import Minions
from sapwood.drafters.lookup.ngram import Ngram
from sapwood.engine.loop import Engine
from sapwood.errors import Unsound
from sapwood.policies.beam_path import BeamPath
from sapwood.recipe import Recipe
from sapwood.verifiers.match import Match


def three() -> Minions:
    """The target itself and two others."""
    return Minions(drafters=[DraftModel(model=ToyBackend(salt)) for salt in ("b", "a", "c")])


def test_a_drafter_that_is_right_outvotes_the_others() -> None:
    engine = Engine(
        ToyBackend("a"),
        Recipe(three(), BeamPath(beam=1), Match(), Fixed(nodes=3, depth=3, width=3)),
    )
    bound = engine.recipe.drafter
    assert isinstance(bound, Minions)
    rounds = engine.rounds([0, 1, 2], Sampling(max_tokens=200), KeyedRng(0))
    outcomes = [outcome for _, outcome in zip(range(40), rounds, strict=False)]
    weights = bound.weights()
    assert weights[1] > max(weights[0], weights[2])
    assert np.mean([outcome.verdict.accepted for outcome in outcomes[-10:]]) > 2.5
    assert all(len(outcome.tree) <= 4 for outcome in outcomes)  # one path is checked


def test_votes_are_shares_of_the_weights() -> None:
    engine = Engine(
        ToyBackend("a"),
        Recipe(three(), BeamPath(beam=1), Match(), Fixed(nodes=1, depth=1, width=3)),
    )
    outcome = next(engine.rounds([0, 1, 2], Sampling(max_tokens=9), KeyedRng(0)))
    grown = outcome.grown
    votes = [bin(int(grown.sources[child])).count("1") for child in grown.children(ROOT)]
    assert grown.probs[grown.children(ROOT)] == pytest.approx([vote / 3 for vote in votes])


def test_drawn_tokens_cannot_be_voted_on() -> None:
    drawn = Minions(drafters=[Ngram(), DraftModel(model=ToyBackend("b"), draws=Draw.IID)])
    with pytest.raises(Unsound, match="draws=topk"):
        drawn.draws  # noqa: B018


def test_no_whole_tree_is_drafted() -> None:
    assert three().prelaunch(None, Tree(0)) is None  # type: ignore[arg-type, func-returns-value]


def test_weights_are_shares_of_what_was_verified() -> None:
    drafters: list[Drafter] = [DraftModel(model=ToyBackend(salt)) for salt in ("a", "b")]
    recipe = Recipe(
        Minions(drafters=drafters, fade=1.0),
        BeamPath(beam=1),
        Match(),
        Fixed(nodes=1, depth=1, width=2),
    )
    engine = Engine(ToyBackend("a"), recipe)
    bound = engine.recipe.drafter
    assert isinstance(bound, Minions)
    outcome = next(engine.rounds([0, 1, 2], Sampling(max_tokens=9), KeyedRng(0)))
    hit, tried = outcome.verified_nodes()
    mine = [
        [
            bool(hit[node])
            for node in np.flatnonzero(tried)
            if outcome.grown.sources[node] >> place & 1
        ]
        for place in (0, 1)
    ]
    assert any(mine)
    assert bound.weights()[:2] == pytest.approx(
        [(sum(seen) + 1) / (len(seen) + 2) for seen in mine]
    )

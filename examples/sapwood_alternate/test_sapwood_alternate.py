"""The checks of any policy, and one of its own."""

import pytest
from sapwood_alternate import Alternate

from sapwood.backends.toy import ToyBackend
from sapwood.controllers.fixed import Fixed
from sapwood.core.rng import KeyedRng
from sapwood.core.sampling import Sampling
from sapwood.core.types import Draw
from sapwood.drafters.compose.draft_model import DraftModel
from sapwood.engine.loop import Engine
from sapwood.recipe import Recipe
from sapwood.testing import check_part, law_error
from sapwood.verifiers.match import Match
from sapwood.verifiers.mss import Mss
from sapwood.verifiers.rrs import Rrs


def test_it_keeps_the_contract_of_policies() -> None:
    check_part("policy", Alternate())
    check_part("policy", Alternate(wide=1))


@pytest.mark.parametrize(
    ("draws", "verifier"), [(Draw.TOPK, Match()), (Draw.IID, Mss()), (Draw.SWOR, Rrs())], ids=str
)
def test_it_keeps_the_law(draws: Draw, verifier: Match | Mss | Rrs) -> None:
    drafter = DraftModel(model=ToyBackend("draft"), draws=draws)
    recipe = Recipe(drafter, Alternate(wide=2), verifier, Fixed(nodes=4, depth=2, width=2))
    assert law_error(recipe) <= 1e-12


def test_it_forks_on_every_other_level() -> None:
    recipe = Recipe(
        DraftModel(model=ToyBackend("draft")),
        Alternate(wide=2),
        Match(),
        Fixed(nodes=20, depth=4, width=4),
    )
    outcome = next(Engine(ToyBackend(), recipe).rounds([0, 1, 2], Sampling(), KeyedRng(0)))
    assert [len(outcome.tree.level(depth)) for depth in range(5)] == [1, 2, 2, 4, 4]

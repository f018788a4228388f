"""SpecHub: pairs of a choice and a draw; other groups are left to mixed."""

import pytest

from sapwood.backends.toy import ToyBackend
from sapwood.core.protocols import Verifier
from sapwood.core.types import Draw
from sapwood.testing import expected_tokens
from sapwood.verifiers.mixed import Mixed
from sapwood.verifiers.spechub import SpecHub
from tests.helpers.verifier_recipes import recipe


@pytest.mark.parametrize(
    ("draws", "verifier"), [(Draw.MIXED, SpecHub()), (Draw.MIXED, Mixed())], ids=str
)
def test_spechub_leaves_other_groups_to_mixed(draws: Draw, verifier: Verifier) -> None:
    """Three children are no pair."""
    assert tokens_of_three(draws, verifier) == pytest.approx(
        tokens_of_three(Draw.MIXED, Mixed()), abs=1e-12
    )


def tokens_of_three(draws: Draw, verifier: Verifier) -> float:
    return expected_tokens(recipe(draws, verifier, [3], vocab=4), ToyBackend("three", vocab=4))

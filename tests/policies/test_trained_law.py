"""Trained policies and controllers keep the exact law; one that drops what it dislikes is noticed."""

from pathlib import Path

import pytest

from sapwood.backends.toy import ToyBackend
from sapwood.controllers.ldlp import Ldlp
from sapwood.core.protocols import Policy, Verifier
from sapwood.core.tree import Tree
from sapwood.core.types import Budget, Draw
from sapwood.drafters.compose.draft_model import DraftModel
from sapwood.errors import Unsound
from sapwood.estimators import classified as estimate
from sapwood.policies.c2t import C2t
from sapwood.policies.chain import Chain
from sapwood.policies.groups import Groups
from sapwood.policies.ltd import Ltd
from sapwood.policies.specdecpp import SpecDecPp
from sapwood.policies.thompson import Thompson
from sapwood.recipe import Recipe
from sapwood.testing import law_error
from sapwood.verifiers.match import Match
from sapwood.verifiers.mixed import Mixed
from sapwood.verifiers.mss import Mss
from sapwood.verifiers.naive import Naive
from sapwood.verifiers.rrs import Rrs
from sapwood.verifiers.speculative import Speculative
from tests.helpers.covering import pairwise
from tests.helpers.hidden_state_toy import Mindful, Stateful, random_part
from tests.helpers.trained_policy_rounds import CHAINS, EXACT, LONG, SMALL


@pytest.fixture(params=range(2))
def part_seed(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.mark.parametrize(("draws", "verifier"), CHAINS, ids=str)
def test_specdecpp_keeps_the_law(
    draws: Draw, verifier: Verifier, part_seed: int, tmp_path: Path
) -> None:
    weights = random_part("specdec++", tmp_path, part_seed)
    policy = SpecDecPp(threshold=0.6, weights=weights)
    recipe = Recipe(Stateful(model=ToyBackend("draft"), draws=draws), policy, verifier, LONG)
    assert law_error(recipe, ToyBackend("a")) <= EXACT


@pytest.mark.parametrize(
    ("draws", "verifier", "cutoff", "seed"),
    [(*chain, *rest) for chain, *rest in pairwise(CHAINS, [0.0, 0.7], range(2))],
    ids=str,
)
def test_thompson_keeps_the_law(draws: Draw, verifier: Verifier, cutoff: float, seed: int) -> None:
    policy = Thompson(cutoff=cutoff, seed=seed, yes=1.0, no=1.0)
    recipe = Recipe(DraftModel(model=ToyBackend("draft"), draws=draws), policy, verifier, SMALL)
    assert law_error(recipe, ToyBackend("a"), rounds=2) <= EXACT


@pytest.mark.parametrize(
    ("draws", "verifier"), [(Draw.TOPK, Match()), (Draw.TOPK, Naive()), (Draw.SWOR, Naive())]
)
@pytest.mark.parametrize("kind", ["c2t", "ltd"])
def test_policies_that_cut_nodes_keep_the_law(
    kind: str, draws: Draw, verifier: Verifier, part_seed: int, tmp_path: Path
) -> None:
    weights = random_part(kind, tmp_path, part_seed)
    policy: Policy = C2t(weights=weights) if kind == "c2t" else Ltd(weights=weights, beam=2)
    recipe = Recipe(DraftModel(model=ToyBackend("draft"), draws=draws), policy, verifier, SMALL)
    assert (
        law_error(recipe, ToyBackend("a"), rounds=2 if draws is Draw.TOPK else 1, horizon=2)
        <= EXACT
    )


@pytest.mark.parametrize("policy", [C2t(), Ltd()], ids=str)
def test_policies_that_cut_nodes_are_refused_where_q_is_read(policy: Policy) -> None:
    with pytest.raises(Unsound, match="prunes single nodes"):
        Recipe(DraftModel(model=ToyBackend("draft"), draws=Draw.SWOR), policy, Rrs(), SMALL)


@pytest.mark.parametrize(
    ("draws", "verifier"), [(Draw.SWOR, Rrs()), (Draw.IID, Mss()), (Draw.MIXED, Mixed())]
)
def test_the_classifier_values_groups_of_draws_lawfully(
    draws: Draw, verifier: Verifier, part_seed: int, tmp_path: Path
) -> None:
    estimator = estimate.Classified(weights=random_part("c2t", tmp_path, part_seed))
    recipe = Recipe(
        DraftModel(model=ToyBackend("draft"), draws=draws),
        Groups(floor=0.3, estimator=estimator),
        verifier,
        SMALL,
    )
    assert law_error(recipe, ToyBackend("a"), horizon=2) <= EXACT


@pytest.mark.parametrize(("draws", "verifier"), CHAINS, ids=str)
def test_ldlp_keeps_the_law(
    draws: Draw, verifier: Verifier, part_seed: int, tmp_path: Path
) -> None:
    controller = Ldlp(most=2, nodes=4, width=2, weights=random_part("ldlp", tmp_path, part_seed))
    recipe = Recipe(
        DraftModel(model=ToyBackend("draft"), draws=draws), Chain(), verifier, controller
    )
    assert law_error(recipe, Mindful("a"), rounds=2) <= EXACT


class Peeking(SpecDecPp):
    """Drops the newest draft by its own probability: what rule 2 of soundness forbids."""

    def prune(self, tree: Tree, budget: Budget) -> Tree:
        path = [node for node in range(len(tree)) if tree.probs[tree.path(node)].min() > 0.5]
        return super().prune(tree, budget).keep(path)


def test_the_law_check_sees_a_head_that_drops_what_it_dislikes(tmp_path: Path) -> None:
    policy = Peeking(weights=random_part("specdec++", tmp_path))
    recipe = Recipe(
        Stateful(model=ToyBackend("draft"), draws=Draw.IID), policy, Speculative(), SMALL
    )
    assert law_error(recipe, ToyBackend("a")) > 1e-3

"""TapOut at every token: decisions, what they learn from, and the exact law over rounds."""

import itertools
from dataclasses import dataclass
from typing import Any

import pytest

from sapwood.backends.toy import ToyBackend
from sapwood.common.bandits import BanditRule
from sapwood.controllers.fixed import Fixed
from sapwood.core.rng import KeyedRng
from sapwood.core.sampling import Sampling
from sapwood.core.tree import Tree
from sapwood.core.types import Budget, Draw
from sapwood.drafters.compose.draft_model import DraftModel
from sapwood.engine.loop import Engine
from sapwood.errors import SapwoodError
from sapwood.policies.adaedl import AdaEdl
from sapwood.policies.chain import Chain
from sapwood.policies.logit_margin import LogitMargin
from sapwood.policies.max_confidence import MaxConfidence
from sapwood.policies.stop_base import StopBase
from sapwood.policies.svip import Svip
from sapwood.policies.svip_difference import SvipDifference
from sapwood.policies.tapout import TapOut
from sapwood.policies.tapout_token import TapOutToken
from sapwood.recipe import Recipe
from sapwood.recipes import resolve
from sapwood.testing import law_error
from sapwood.verifiers.match import Match
from sapwood.verifiers.speculative import Speculative
from tests.helpers.controller_rounds import begin, outcome

BUDGET = Budget(8, 8, 1)


@dataclass
class Stops(StopBase):
    """Ends with every token."""

    def ends(self, tree: Tree, child: int) -> bool:
        return True


@dataclass
class GoesOn(StopBase):
    """Ends with none."""

    def ends(self, tree: Tree, child: int) -> bool:
        return False


def drafted(policy: Any, most: int = 8) -> int:
    """Tokens of a chain that the policy lets grow."""
    tree = Tree(0)
    while len(tree) <= most and (frontier := policy.frontier(tree, BUDGET)):
        [(node, _)] = frontier
        tree.add(node, 1, 0.5)
        tree.close(node)
        assert policy.frontier(tree, BUDGET) == policy.frontier(tree, BUDGET)  # decided once
    return tree.height


def test_both_forms_have_the_papers_five_arms() -> None:
    kinds = [MaxConfidence, Svip, AdaEdl, SvipDifference, LogitMargin]
    for policy in (
        TapOut(),
        TapOutToken(),
        resolve("tapout").policy,
        resolve("tapout-token").policy,
    ):
        assert [type(arm) for arm in policy.policies] == kinds  # type: ignore[attr-defined]
        assert policy.reads_probs


def test_the_rule_that_was_picked_decides_and_its_token_stays() -> None:
    assert drafted(begin(TapOutToken(policies=[Stops()]))) == 1
    assert drafted(begin(TapOutToken(policies=[GoesOn()]))) == 8


@pytest.mark.parametrize(
    ("accepted", "right", "tested"),
    # chains of 4 whose rule went on after tokens 1 to 3; token 4 was the last allowed
    [(0, 0, 1), (1, 0, 2), (2, 1, 3), (3, 2, 3), (4, 3, 3)],
)
def test_going_on_is_right_if_the_next_token_was_accepted(
    accepted: int, right: int, tested: int
) -> None:
    policy = begin(TapOutToken(policies=[GoesOn()]))
    tree = Tree(0)
    for node in range(4):
        assert policy.frontier(tree, Budget(4, 4, 1))
        tree.add(node, 1, 0.5)
        tree.close(node)
    assert not policy.frontier(tree, Budget(4, 4, 1))
    policy.observe(outcome(accepted, 4))
    assert policy.learner.sums.tolist() == [right]
    assert policy.learner.counts.tolist() == [tested]


@pytest.mark.parametrize(("accepted", "right"), [(0, 1), (1, 0)])
def test_stopping_is_right_if_the_token_was_refused(accepted: int, right: int) -> None:
    policy = begin(TapOutToken(policies=[Stops()]))
    assert drafted(policy) == 1
    policy.observe(outcome(accepted, 1))
    assert policy.learner.sums.tolist() == [right]
    assert policy.learner.counts.tolist() == [1]


def test_it_settles_on_the_better_rule() -> None:
    recipe = Recipe(
        DraftModel(model=ToyBackend("target")),
        TapOutToken(policies=[Stops(), GoesOn()]),
        Match(),
        Fixed(5, 5, 1),
    )
    rounds = Engine(ToyBackend("target", context=900), recipe).rounds(
        [0, 1, 2], Sampling(max_tokens=800), KeyedRng(0)
    )
    heights = [step.tree.height for step in itertools.islice(rounds, 80)]
    assert heights[-30:].count(5) > 24


@pytest.mark.parametrize("rule", BanditRule)
def test_it_keeps_the_law_over_rounds(rule: BanditRule) -> None:
    policy = TapOutToken(policies=[Stops(), GoesOn(), Svip()], bandit=rule)
    drafter = DraftModel(model=ToyBackend("draft"), draws=Draw.IID)
    recipe = Recipe(drafter, policy, Speculative(), Fixed(2, 2, 1))
    assert law_error(recipe, rounds=2, horizon=3) <= 1e-12


def test_its_arms_are_stop_rules() -> None:
    for wrong in ([], [Chain()], [Svip(), Chain()]):
        with pytest.raises(SapwoodError, match="needs stop rules"):
            TapOutToken(policies=wrong)  # type: ignore[arg-type]

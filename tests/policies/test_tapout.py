"""TapOut: a bandit over stop rules, its rewards, and the exact law over rounds."""

import itertools
from typing import Any

import pytest

from sapwood.backends.toy import ToyBackend
from sapwood.common.bandits import BanditRule
from sapwood.controllers.fixed import Fixed
from sapwood.core.rng import KeyedRng
from sapwood.core.sampling import Sampling
from sapwood.core.tree import Tree
from sapwood.core.types import Budget, Draw, Outcome, Prune, StageTimes, Verdict
from sapwood.drafters.compose.draft_model import DraftModel
from sapwood.engine.loop import Engine
from sapwood.errors import SapwoodError, Unsound
from sapwood.policies.beam import Beam
from sapwood.policies.chain import Chain
from sapwood.policies.static import Static
from sapwood.policies.svip import Svip
from sapwood.policies.tapout import TapOut, TapOutReward
from sapwood.recipe import Recipe
from sapwood.testing import law_error
from sapwood.verifiers.match import Match
from sapwood.verifiers.speculative import Speculative
from tests.helpers.controller_rounds import SCORES, begin, outcome

PROMPT = [0, 1, 2]


def test_tapout_says_what_its_arms_do() -> None:
    assert TapOut(policies=[Chain(), Static()]).prunes is Prune.GROUPS
    assert TapOut(policies=[Chain(), Beam()]).prunes is Prune.NODES
    assert not TapOut(policies=[Chain(), Static()]).reads_probs
    assert TapOut(policies=[Chain(), Svip()]).reads_probs
    with pytest.raises(SapwoodError, match="at least one policy"):
        TapOut(policies=[])
    with pytest.raises(Unsound, match="prunes single nodes"):
        Recipe(
            DraftModel(draws=Draw.IID), TapOut(policies=[Chain(), Beam()]), Speculative(), Fixed()
        )


def rewarded(policy: TapOut, *rounds: tuple[int, int, StageTimes | None]) -> list[float]:
    """Mean rewards by arm after chains with so many (accepted, drafted) tokens; the longest draft is 8."""
    begin(policy)
    for accepted, drafted, times in rounds:
        policy.frontier(Tree(0), Budget(8, 8, 1))
        policy.observe(outcome(accepted, drafted, times))
    means: list[float] = policy.learner.means.tolist()  # type: ignore[attr-defined]
    return means


def test_the_blend_is_the_papers_and_likes_a_single_sure_token() -> None:
    arms: list[Any] = [Chain(), Chain()]
    blend = rewarded(TapOut(policies=arms), (1, 1, None), (4, 8, None))
    assert blend == pytest.approx([0.5 * 1 / 8 + 0.5 * 1 / 1, 0.5 * 4 / 8 + 0.5 * 4 / 8])
    assert blend[0] > blend[1]  # one token a round beats four
    share = rewarded(TapOut(policies=arms, reward=TapOutReward.SHARE), (1, 1, None), (4, 8, None))
    assert share == pytest.approx([1 / 8, 4 / 8])
    quick = StageTimes(0.1, 1.0)
    slow = StageTimes(0.8, 1.0)
    speed = rewarded(
        TapOut(policies=arms, reward=TapOutReward.SPEED), (9, 9, quick), (1, 1, quick), (4, 8, slow)
    )
    assert speed == pytest.approx(
        [2 / 1.1 / 9, 5 / 1.8 / 9]
    )  # the first round, which read the prompt, is left out


def test_a_rule_that_takes_all_back_gets_nothing_and_an_idle_drafter_is_nobodys_fault() -> None:
    policy = begin(TapOut(policies=[Chain(), Chain()]))
    policy.frontier(Tree(0), Budget(8, 8, 1))
    policy.observe(outcome(0, 0))
    assert policy.learner.counts.tolist() == [0, 0]
    grown = outcome(0, 1)
    policy.observe(Outcome(grown.grown, Tree(0), Verdict((0,), 2), SCORES, 10))
    assert policy.learner.counts.tolist() == [1, 0]
    assert policy.learner.sums.tolist() == [0, 0]


def test_a_round_that_was_cut_short_does_not_teach() -> None:
    policy = begin(TapOut(policies=[Chain(), Chain()]))
    policy.frontier(Tree(0), Budget(8, 8, 1))
    policy.observe(outcome(8, 8))
    policy.frontier(Tree(0), Budget(8, 2, 1))  # the text ends
    policy.observe(outcome(2, 2))
    assert policy.learner.counts.tolist() == [1, 0]


class Short(Chain):
    """A chain of one."""

    def frontier(self, tree: Tree, budget: Budget) -> Any:
        """The root alone."""
        return super().frontier(tree, budget) if tree.height == 0 else []


@pytest.mark.parametrize("rule", [BanditRule.UCB, BanditRule.THOMPSON])
def test_tapout_settles_on_the_better_rule(rule: BanditRule) -> None:
    recipe = Recipe(
        DraftModel(model=ToyBackend("target")),
        TapOut(policies=[Short(), Chain()], bandit=rule),
        Match(),
        Fixed(5, 5, 1),
    )
    steps = Engine(ToyBackend("target", context=4000), recipe).rounds(
        PROMPT, Sampling(max_tokens=3900), KeyedRng(0)
    )
    heights = [step.tree.height for step in itertools.islice(steps, 300)]
    assert heights[-50:].count(5) > 40
    assert 1 in heights


@pytest.mark.parametrize("rule", BanditRule)
def test_tapout_keeps_the_law_over_rounds(rule: BanditRule) -> None:
    policy = TapOut(policies=[Short(), Chain(), Svip()], bandit=rule)
    recipe = Recipe(
        DraftModel(model=ToyBackend("draft"), draws=Draw.IID), policy, Speculative(), Fixed(2, 2, 1)
    )
    assert law_error(recipe, rounds=2, horizon=3) <= 1e-12

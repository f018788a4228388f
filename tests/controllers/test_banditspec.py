"""BanditSpec: arms are tried, the fastest is found, and rewards go to the arm that was played."""

import itertools
from typing import Any

import pytest

from sapwood.backends.toy import ToyBackend
from sapwood.common.bandits import BanditRule
from sapwood.controllers.banditspec import BanditSpec
from sapwood.controllers.banditspec import BanditSpecReward as Pay
from sapwood.controllers.fixed import Fixed
from sapwood.core.rng import KeyedRng
from sapwood.core.sampling import Sampling
from sapwood.core.types import Budget
from sapwood.drafters.compose.draft_model import DraftModel
from sapwood.engine.cost_model import CostModel, flat
from sapwood.engine.loop import Engine
from sapwood.policies.chain import Chain
from sapwood.recipe import Recipe
from sapwood.verifiers.match import Match
from tests.helpers.controller_rounds import begin, outcome

PROMPT = [0, 1, 2]
STEEP = CostModel([1, 2, 1024], [0], [[1.0, 100.0, 100.0]])  # a second row costs a hundred passes


class Timed(ToyBackend):
    """A target whose passes take the seconds of a curve, on a clock of their own."""

    def score(self, work: Any, chunks: Any = ()) -> Any:
        """Let the clock go on."""
        clock[0] += curve[0].seconds(len(work[0].tree), 0)
        return super().score(work, chunks)


clock = [0.0]
curve = [flat()]


def depths(controller: Any, cost: CostModel, draft: str, rounds: int) -> list[int]:
    """Chain lengths that a controller asks for on a machine of this cost; drafting is free."""
    clock[0], curve[0] = (
        0.0,
        CostModel(cost.rows, cost.contexts, [list(line) for line in cost.table]),
    )
    recipe = Recipe(DraftModel(model=ToyBackend(draft)), Chain(), Match(), controller)
    engine = Engine(Timed("target", context=20_000), recipe, cost, now=lambda: clock[0])
    steps = itertools.islice(
        engine.rounds(PROMPT, Sampling(max_tokens=19_000), KeyedRng(0)), rounds
    )
    return [step.tree.height for step in steps]


STAIRS = CostModel(
    [1, 3, 4, 1024], [0], [[1.0, 1.0, 4.0, 4.0]]
)  # three rows cost what one does, four much more


def test_banditspec_tries_each_arm_and_finds_the_fastest() -> None:
    found = depths(
        BanditSpec(), STAIRS, "target", 400
    )  # the first round of a request has read the prompt
    assert found[:5] == [1, 1, 2, 3, 4]
    assert found[-100:].count(2) > 60


def test_by_tokens_alone_the_longest_draft_wins_whatever_it_costs() -> None:
    found = depths(BanditSpec(reward=Pay.TOKENS), STAIRS, "target", 400)
    assert found[-100:].count(4) > 60


def test_exp3_leans_toward_the_fastest() -> None:
    found = depths(BanditSpec(bandit=BanditRule.EXP3), STAIRS, "target", 600)
    counts = [found[-300:].count(depth) for depth in (1, 2, 3, 4)]
    assert counts[1] == max(counts)
    assert counts[1] > 2 * counts[3]


def test_drafting_nothing_can_be_an_arm() -> None:
    arms: list[Any] = [Fixed(0, 0, 0), Fixed(2, 2, 1)]
    assert depths(BanditSpec(arms=arms), STEEP, "target", 200)[-50:].count(0) > 40
    assert depths(BanditSpec(arms=arms), flat(), "target", 200)[-50:].count(0) < 10


def test_rounds_that_say_nothing_about_an_arm_do_not_teach() -> None:
    controller = begin(BanditSpec(reward=Pay.TOKENS), max_tokens=5)
    assert controller.budget() == Budget(1, 1, 1)
    controller.observe(outcome(0, 0))  # the drafter had nothing
    assert controller.learner.counts.sum() == 0
    controller.budget()
    controller.observe(outcome(1, 1))
    assert controller.learner.counts.tolist() == [1, 0, 0, 0]
    controller.sampler_.commit([1, 1, 1])
    assert controller.budget().depth == 2  # but a single token is left to draft
    controller.observe(outcome(1, 1))
    assert controller.learner.counts.tolist() == [1, 0, 0, 0]


def test_a_reward_goes_to_the_arm_that_was_played_however_late_it_comes() -> None:
    controller = begin(BanditSpec(reward=Pay.TOKENS))
    assert [controller.budget().depth for _ in range(2)] == [
        1,
        1,
    ]  # the second before the first was observed
    controller.observe(outcome(1, 1))
    assert controller.budget().depth == 2
    controller.observe(outcome(0, 1))
    controller.observe(outcome(2, 2))
    assert controller.learner.counts.tolist() == [2, 1, 0, 0]
    assert controller.learner.sums.tolist() == pytest.approx([2 / 5 + 1 / 5, 3 / 5, 0, 0])

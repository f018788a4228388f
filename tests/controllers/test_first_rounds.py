"""What the first round of a request, a change of company and the end of a text teach a controller."""

from typing import Any

import numpy as np
import pytest

from sapwood.backends.toy import ToyBackend, ToyOutput
from sapwood.controllers.banditspec import BanditSpec, BanditSpecReward
from sapwood.controllers.ema import Ema
from sapwood.controllers.fixed import Fixed
from sapwood.controllers.goodput import Goodput
from sapwood.controllers.on_the_fly import OnTheFly
from sapwood.controllers.posterior import Posterior
from sapwood.controllers.smartspec import SmartSpec
from sapwood.core.protocols import Controller, EngineContext, RequestContext
from sapwood.core.sampling import Sampler, Sampling
from sapwood.core.tree import Tree
from sapwood.core.types import BatchLoad, Outcome, StageTimes, Verdict
from sapwood.engine.cost_model import CostModel, flat
from sapwood.engine.loop import no_loader

PROMPT = [0, 1, 2]


def bound(part: Any, cost: CostModel | None = None) -> Any:
    part.bind(EngineContext(ToyBackend(), cost or flat(), no_loader))
    return part


def request(max_tokens: int = 10_000) -> RequestContext:
    sampler = Sampler(Sampling(max_tokens=max_tokens), PROMPT)
    return RequestContext(PROMPT, sampler, ToyBackend().open(PROMPT[:-1]))


def begin(part: Any, max_tokens: int = 10_000) -> Any:
    bound(part).reset(request(max_tokens))
    return part


def outcome(accepted: int, depth: int, draft: float, context: int = 2) -> Outcome:
    """A chain of this depth, of which so many tokens were accepted, on a target of one second a pass."""
    tree = Tree(0)
    for node in range(depth):
        tree.add(node, 1, 0.5)
        tree.close(node)
    verdict = Verdict(tuple(range(accepted + 1)), 2)
    times = StageTimes(draft, 1.0, 0.0)
    return Outcome(tree, tree, verdict, ToyOutput(np.zeros((1, 3))), context, times)


# ----------------------------------------------------------------------------------- on-the-fly
def test_on_the_fly_takes_no_price_from_a_round_that_has_read_the_prompt() -> None:
    controller = begin(OnTheFly(start=5))
    controller.observe(outcome(2, 4, draft=100.0))
    assert list(controller.memory.prices) == []
    assert list(controller.memory.tested) == [(2, 1)]
    assert controller.budget().depth == 5
    controller.observe(outcome(2, 4, draft=0.4))
    assert list(controller.memory.prices) == pytest.approx([0.1])
    controller.reset(request())  # the next request begins the same way, with the same memory
    controller.observe(outcome(2, 4, draft=100.0))
    assert list(controller.memory.prices) == pytest.approx([0.1])


def test_on_the_fly_goes_deep_where_all_is_accepted_and_stays_shallow_where_drafting_is_dear() -> (
    None
):
    deep = begin(OnTheFly(most=9))
    for _ in range(3):
        deep.observe(outcome(4, 4, draft=0.04))
    assert deep.budget().depth == 9
    shallow = begin(OnTheFly(most=9))
    for _ in range(3):
        shallow.observe(outcome(1, 4, draft=4.0))
    assert shallow.budget().depth == 1


def test_on_the_fly_weighs_the_formula_for_chains() -> None:
    controller = begin(OnTheFly(most=20, slack=0.0))
    memory = controller.memory
    memory.tested.extend([(4, 1)] * 5)  # a = 0.8
    memory.prices.extend([0.1, 0.1, 9.0])  # the median counts
    pace = [sum(0.8**k for k in range(g + 1)) / (1 + 0.1 * g) for g in range(21)]
    assert controller.choose(memory) == int(np.argmax(pace))


# ------------------------------------------------------------------------------------ smartspec
@pytest.mark.parametrize("kind", [SmartSpec, Posterior])
def test_smartspec_takes_no_price_from_a_round_that_has_read_the_prompt(kind: Any) -> None:
    controller = begin(kind())
    controller.observe(outcome(1, 2, draft=50.0))
    assert (controller.record.step, controller.record.drafts) == (0.0, 0)
    controller.observe(outcome(1, 2, draft=0.5))
    assert (controller.record.step, controller.record.drafts) == (0.25, 1)
    controller.reset(request())
    controller.observe(outcome(1, 2, draft=50.0))
    assert controller.record.step == 0.25


@pytest.mark.parametrize("kind", [SmartSpec, Posterior])
def test_a_request_begins_with_the_batch_that_was_set_and_follows_its_company(kind: Any) -> None:
    controller = begin(kind(batch=3))
    assert (controller.batch_, controller.turns_, controller.context_) == (3, 1, 2)
    controller.join(BatchLoad(trees=5))
    assert (controller.batch_, controller.turns_) == (5, 5)
    controller.reset(request())
    assert (controller.batch_, controller.turns_) == (3, 1)


def test_posterior_draws_by_prompt_and_place() -> None:
    controller = begin(Posterior())
    first = controller.rate()
    assert controller.rate() == first
    controller.sampler_.commit([1])
    assert controller.rate() != first


# ----------------------------------------------------------------------------------- banditspec
def test_banditspec_leaves_the_curve_to_an_arm_that_refines_it() -> None:
    assert bound(BanditSpec(arms=[Fixed(nodes=2), Fixed(nodes=4)])).watched
    assert not bound(BanditSpec(arms=[Fixed(nodes=2), Goodput()])).watched
    assert not bound(BanditSpec(arms=[Goodput(), Goodput(nodes=3)])).watched


@pytest.mark.parametrize(("max_tokens", "counts"), [(5, True), (4, False)])
def test_banditspec_forgives_a_draft_that_the_end_of_the_text_cut_short(
    max_tokens: int, counts: bool
) -> None:
    arms: list[Controller] = [Fixed(nodes=4, depth=4, width=1)]
    controller = begin(BanditSpec(arms=arms, reward=BanditSpecReward.TOKENS), max_tokens)
    rewards: list[float] = []
    controller.learner.learn = lambda choice, reward: rewards.append(reward)
    controller.budget()
    controller.observe(outcome(3, 4, draft=0.0))
    assert rewards == ([pytest.approx(4 / 5)] if counts else [])


def test_banditspec_learns_the_seconds_of_later_rounds_only() -> None:
    controller = begin(BanditSpec(arms=[Fixed(nodes=2, depth=2, width=1)]))
    rewards: list[float] = []
    controller.learner.learn = lambda choice, reward: rewards.append(reward)
    for _ in range(3):
        controller.budget()
        controller.observe(outcome(2, 2, draft=0.0))
    assert rewards == [pytest.approx(1.0)] * 2
    controller.budget()
    controller.observe(outcome(0, 0, draft=0.0))  # the drafter had nothing
    assert len(rewards) == 2


# ---------------------------------------------------------------------------- small trees and rests
def test_a_tree_of_one_node_is_a_test_too() -> None:
    controller = begin(OnTheFly())
    controller.observe(outcome(1, 1, draft=0.1))
    controller.observe(outcome(0, 1, draft=0.1))
    controller.observe(outcome(0, 0, draft=0.0))
    assert list(controller.memory.tested) == [(1, 0), (0, 1)]


def test_ema_counts_idle_rounds_from_the_start_of_a_request() -> None:
    controller = begin(Ema(probe=2, floor=0.5))
    controller.average_ = 0.0
    sent = []
    for _ in range(6):
        sent.append(controller.budget().nodes > 0)
        controller.observe(outcome(0, int(sent[-1]), draft=0.0))
    assert sent == [False, False, True] * 2
